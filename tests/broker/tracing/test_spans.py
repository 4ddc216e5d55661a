"""Which spans a broker makes, without OpenTelemetry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.tracing.contexts import CONTEXTS_MAX, TraceContext
from broker.tracing.decisions import TracedHeaders, TracedTransactionalIds
from broker.tracing.spans import TRANSACTIONS_MAX, Counts, Kind, Place, Tracing
from storage.metadata.store import Record
from txn.headers import Header, header_key, v5_id
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer, transaction_key
from txn.states import TxnState

PLACE = Place("topic://public/default/x", "8000-ffff-1", "pulsar")
ONE, TWO, OTHER = TraceContext(1, 11), TraceContext(1, 12), TraceContext(2, 21)


@dataclass
class Begun:
    name: str
    parent: TraceContext
    links: Sequence[TraceContext]
    attributes: Mapping[str, str | int]
    start_ns: int
    is_ended: bool = False

    def end(self, end_time: int | None = None) -> None:
        assert not self.is_ended
        self.is_ended = True


@dataclass
class Book:
    """Keeps the spans."""

    spans: list[Begun] = field(default_factory=list)

    def start(
        self,
        name: str,
        parent: TraceContext,
        *,
        kind: Kind,
        attributes: Mapping[str, str | int],
        links: Sequence[TraceContext],
        start_ns: int,
    ) -> Begun:
        self.spans.append(Begun(name, parent, tuple(links), dict(attributes), start_ns))
        return self.spans[-1]


def made() -> tuple[Tracing, Book]:
    book = Book()
    return Tracing(book.start, lambda: Counts(0, 0, 0)), book


def append(tracing: Tracing, *contexts: TraceContext, txn: object = None) -> None:
    for span in tracing.appended(PLACE, contexts, transaction=txn, waited_seconds=1.0):
        span.end()


def test_an_append_begins_with_its_send_and_ends_when_it_is_told() -> None:
    tracing, book = made()
    spans = tracing.appended(PLACE, [ONE, OTHER], transaction=None, waited_seconds=1.0)
    later = tracing.appended(PLACE, [TWO], transaction=None, waited_seconds=0.0)
    assert [(span.name, span.parent) for span in book.spans[:2]] == [
        ("append " + PLACE.topic, ONE),
        ("append " + PLACE.topic, OTHER),
    ]
    assert 0.9e9 < book.spans[2].start_ns - book.spans[0].start_ns < 60e9
    assert not any(span.is_ended for span in book.spans)
    for span in [*spans, *later]:
        span.end()
    assert book.spans[0].attributes["messaging.destination.partition.id"] == "8000-ffff-1"
    assert book.spans[0].attributes["messaging.batch.message_count"] == 2
    assert "messaging.batch.message_count" not in book.spans[2].attributes


def test_a_transaction_ends_once_in_each_trace_that_wrote_in_it() -> None:
    tracing, book = made()
    append(tracing, ONE, OTHER, txn="t")
    append(tracing, TWO, txn="t")
    append(tracing, TraceContext(3, 31), txn="another")
    tracing.ended("t", "commit", decided_ms=5_000)
    tracing.ended("t", "commit", decided_ms=5_000)
    ends = [(span.name, span.parent, span.links, span.start_ns) for span in book.spans if span.name == "commit"]
    assert ends == [("commit", ONE, (ONE, TWO), 5_000_000_000), ("commit", OTHER, (OTHER,), 5_000_000_000)]


def test_what_open_transactions_keep_is_bounded() -> None:
    tracing, book = made()
    for number in range(TRANSACTIONS_MAX + 1):
        append(tracing, ONE, txn=number)
    assert not tracing.is_traced(0)
    assert tracing.is_traced(1)
    for number in range(2 * CONTEXTS_MAX):
        append(tracing, TraceContext(1, 1 + number), txn="wide")
        append(tracing, TraceContext(1 + number, 1), txn="deep")
    for txn, spans, links in (("wide", 1, CONTEXTS_MAX), ("deep", CONTEXTS_MAX, 1)):
        book.spans.clear()
        tracing.ended(txn, "commit", decided_ms=0)
        assert (len(book.spans), len(book.spans[0].links)) == (spans, links)


def test_a_delivery_is_a_child_of_its_message_and_links_to_it() -> None:
    tracing, book = made()
    tracing.delivered(PLACE, [ONE], subscription="s", stored_ms=0)
    (span,) = book.spans
    assert (span.parent, span.links, span.is_ended) == (ONE, (ONE,), True)
    assert span.attributes["messaging.destination.subscription.name"] == "s"


def test_headers_tell_of_decisions() -> None:
    tracing, book = made()
    headers = TracedHeaders(tracing)
    committed, aborted, gone = (v5_id(0, number) for number in (1, 2, 3))
    for txn in (committed, aborted, gone):
        append(tracing, ONE, txn=txn)
    book.spans.clear()
    opened = Header(TxnState.OPEN, 9_000, 1_000)

    def show(txn: object, header: Header) -> None:
        put = header.to_put(txn, 0)  # type: ignore[arg-type]
        headers.shown(Record(put.key, put.value, 1))

    show(committed, opened)
    assert book.spans == []
    show(committed, opened.ended(TxnState.COMMITTED, 2_000))
    show(aborted, opened.ended(TxnState.ABORTED, 3_000))
    headers.shown(Record(header_key(v5_id(0, 4)), b"damaged, but of no trace", 1))
    headers.removed(header_key(gone))
    assert [(span.name, span.start_ns) for span in book.spans] == [("commit", 2_000_000_000), ("abort", 3_000_000_000)]
    assert not any(tracing.is_traced(txn) for txn in (committed, aborted, gone))


def test_records_of_transactional_ids_tell_of_decisions() -> None:
    tracing, book = made()
    followed = TracedTransactionalIds(tracing)
    for name in ("committed", "aborted", "gone"):
        append(tracing, ONE, txn=name)
    book.spans.clear()
    for name, state in (
        ("committed", KafkaTxnState.ONGOING),
        ("committed", KafkaTxnState.PREPARE_COMMIT),
        ("committed", KafkaTxnState.COMPLETE_COMMIT),
        ("aborted", KafkaTxnState.PREPARE_ABORT),
    ):
        started_ms = None if state.is_idle else 1_000
        markers = Producer(1, 0) if state.is_ending else None
        record = KafkaTransaction(Producer(1, 0), state, 1_000, 2_000, started_ms, markers=markers)
        put = record.to_put(name, 0)
        followed.shown(Record(put.key, put.value, 1))
    followed.removed(transaction_key("gone"))
    assert [(span.name, span.start_ns) for span in book.spans] == [("commit", 2_000_000_000), ("abort", 2_000_000_000)]
    assert not any(tracing.is_traced(name) for name in ("committed", "aborted", "gone"))
