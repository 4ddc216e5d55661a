"""Any prefix of the log, from zero or from any earlier snapshot, gives exactly the same state."""

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.metadata import transactions
from storage.metadata.batches import BEGINNING
from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.record_codec import decode, encode
from storage.metadata.records import DataRecord
from storage.metadata.replay import Replay
from storage.metadata.snapshots import View
from storage.metadata.store import Delete, DeleteRange, IndexEntry, Op, Put, PutSequential, Session
from tests.support.examples import examples

KEYS = st.sampled_from(["/a", "/b", "/b/1", "/c", "/é"])
ENTRIES = st.lists(st.builds(IndexEntry, st.sampled_from("ij"), st.sampled_from(["x", "y"])), max_size=2).map(tuple)


class Numbered(Session):
    """A session that has only an id."""

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def id(self) -> int:
        return self._number

    @property
    def has_ended(self) -> bool:
        return False

    async def close(self) -> None:
        raise NotImplementedError

    async def wait_lost(self) -> None:
        raise NotImplementedError


OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(Put, KEYS, st.binary(max_size=3), indexes=ENTRIES, partition_key=st.sampled_from([None, "p"])),
    st.builds(Put, st.just("/e"), st.binary(max_size=3), session=st.just(Numbered(1))),
    st.builds(PutSequential, st.sampled_from(["/s", "/b"]), st.binary(max_size=3), st.just("p"), ENTRIES),
    st.builds(Delete, KEYS),
    st.builds(DeleteRange, KEYS, KEYS),
)
HOW = st.sampled_from(["plain", "transaction", "aborted", "abandoned"])
STEPS = st.lists(st.tuples(st.lists(OPS, min_size=1, max_size=6, unique_by=str), HOW), max_size=8)


def bodies_of(steps: list[tuple[list[Op], str]]) -> list[bytes]:
    """Return the batches of a log with these change sets, written in these ways, one record per batch if allowed."""
    image = Image()
    bodies: list[bytes] = []

    def write(decided: list[list[DataRecord]], how: str) -> None:
        for change_set in decided:
            if how == "plain":
                bodies.append(b"".join(map(encode, change_set)))
            else:
                pieces = transactions.pieces("t", change_set)
                data = b"".join(body.data for piece in pieces for body in piece)
                marked = [encode(record) for record in decode(data)]
                if how != "transaction":
                    marked = marked[: -1 if how == "aborted" else 2]
                    marked += [body.data for body in transactions.abort("r")]
                bodies.extend(marked)
            if how in ("plain", "transaction"):
                image.apply(change_set)

    first = Delta(image)
    first.set_feature_level(2)
    first.open_session(1000)
    write(first.change_sets, "plain")
    for ops, how in steps:
        delta = Delta(image)
        delta.commit(ops)
        write(delta.change_sets, how)
    last = Delta(image)
    last.end_sessions([1])
    write(last.change_sets, "plain")
    return bodies


def as_bytes(image: Image) -> bytes:
    """Return the image as in a snapshot, without the snapshot's own place and count, and its indexes."""
    view = View(image, BEGINNING)
    records: list[DataRecord] = [*view.head]
    while found := view.next(3):
        records += found
    hits = [[(hit.index_key, hit.record.key) for hit in image.query(index, "", "~", None)] for index in "ij"]
    return repr((image.revision, hits)).encode() + b"".join(map(encode, records))


def loaded(image: Image) -> Image:
    """Load a snapshot of it."""
    view = View(image, BEGINNING)
    data = b"".join(map(encode, [*view.head, *iter_records(view)]))
    fresh = Image()
    fresh.load(record for record in decode(data) if isinstance(record, DataRecord))
    fresh.revision = image.revision
    return fresh


def iter_records(view: View) -> list[DataRecord]:
    found: list[DataRecord] = []
    while records := view.next(2):
        found += records
    return found


@settings(max_examples=examples(40))
@given(STEPS)
def test_every_prefix_from_zero_and_from_every_snapshot(steps: list[tuple[list[Op], str]]) -> None:
    """R27, R22, R23: the bytes are the same; a snapshot may be taken wherever no transaction is open."""
    bodies = bodies_of(steps)
    expected: list[bytes] = []
    reading = Replay(Image())
    for body in bodies:
        reading.batch(body)
        expected.append(as_bytes(reading.image))
    for start in range(len(bodies)):
        before = Replay(Image())
        for body in bodies[:start]:
            before.batch(body)
        if before.begun is not None:
            continue
        behind = Replay(loaded(before.image))
        for number, body in enumerate(bodies[start:], start):
            behind.batch(body)
            assert as_bytes(behind.image) == expected[number]
