"""What is remembered of producers, and its bounds."""

import orjson
import pytest

from broker.deduplication import sequences as module
from broker.deduplication.sequences import (
    CLOSED_SECONDS,
    GAPS_OF_RECORD_MAX,
    IDLE_MS,
    NAME_BYTES_MAX,
    RANGES_MAX,
    InDoubt,
    Sequences,
    Stored,
)
from broker.entry_codecs import SendId
from storage.entry import TxnId
from storage.position import EARLIEST, Position
from tests.support.deduplication import read, written


def single(number: int) -> SendId:
    return SendId(number, number)


def at(entry: int) -> Position:
    return Position(1, entry)


def places(made: Sequences) -> dict[TxnId, Position]:
    return {txn: made.place_of(txn) for txn in made.open_transactions}


def noted(*sends: SendId, name: str = "p") -> Sequences:
    made = Sequences()
    for entry, send in enumerate(sends):
        made.note(name, send, at(entry), None)
    return made


def test_a_send_is_found_where_it_is() -> None:
    made = noted(single(0), single(1))
    assert made.find("p", single(0), None) == Stored(at(0), at(0))
    assert made.find("p", single(1), None) == Stored(at(1), at(1))
    assert made.find("p", single(2), None) is None
    assert made.find("q", single(0), None) is None
    assert (made.last_id("p"), made.last_id("q")) == (1, -1)
    assert made.knows("p")
    assert not made.knows("q")


def test_a_gap_is_new() -> None:
    """A send was refused, and later ones were accepted."""
    made = noted(single(0), single(2), single(3))
    assert made.find("p", single(1), None) is None
    made.note("p", single(1), at(3), None)
    assert made.find("p", single(1), None) == Stored(at(3), at(3))
    assert written(made)["p"]["ranges"] == [[0, 3]]


def test_a_batch_is_found_as_a_whole() -> None:
    made = noted(SendId(0, 9))
    assert made.find("p", SendId(0, 9), None) == Stored(at(0), at(0))
    assert made.find("p", SendId(5, 14), None) is None
    # Some of its messages, sent alone: stored, and durable when the batch is.
    assert made.find("p", single(4), None) == Stored(EARLIEST, at(0))


def test_parts_of_a_message_are_told_apart() -> None:
    """The parts share a sequence id. It counts as stored with the last part."""
    parts = [SendId(0, 0, chunk, 3) for chunk in range(3)]
    made = noted(*parts[:2])
    assert [made.find("p", part, None) is not None for part in parts] == [True, True, False]
    assert made.last_id("p") == -1
    made.note("p", parts[2], at(2), None)
    assert all(made.find("p", part, None) is not None for part in parts)
    assert made.last_id("p") == 0


def test_what_is_written_down_says_the_same() -> None:
    """Only the positions are missing: the newest entry says when the send is durable."""
    made = noted(single(0), single(2), SendId(3, 3, 0, 2))
    found = read(written(made))
    assert written(found) == written(made)
    assert found.find("p", single(0), None) == Stored(EARLIEST, at(2))
    assert found.find("p", SendId(3, 3, 0, 2), None) is not None
    assert found.find("p", SendId(3, 3, 1, 2), None) is None
    assert found.find("p", single(1), None) is None


def test_ranges_are_bounded() -> None:
    """The lowest ranges are joined; the newest gaps stay."""
    made = noted(*(single(10 * number) for number in range(RANGES_MAX + 5)))
    assert len(written(made)["p"]["ranges"]) == RANGES_MAX
    newest = 10 * (RANGES_MAX + 4)
    assert made.find("p", single(newest - 5), None) is None
    assert made.find("p", single(5), None) is not None


def test_names_that_take_too_much_are_not_remembered() -> None:
    made = Sequences()
    for name in ("n" * (NAME_BYTES_MAX + 1), "ü" * NAME_BYTES_MAX, "\x01"):
        assert made.connect(name)
        made.note(name, single(0), at(0), None)
        assert not made.knows(name)
        made.disconnect(name)
    assert len(made) == 0


def test_places_are_bounded() -> None:
    made = noted(*(single(number) for number in range(module.POSITIONS_MAX + 1)))
    newest = at(module.POSITIONS_MAX)
    assert made.find("p", single(0), None) == Stored(EARLIEST, newest)
    assert made.find("p", single(1), None) == Stored(at(1), at(1))


FIRST, SECOND = TxnId(0, 1), TxnId(0, 2)


def test_a_transactions_sends_follow_its_fate() -> None:
    """E6: it is in doubt while the transaction is open, stored after the commit, and new after the abort."""
    made = Sequences()
    made.note("p", single(0), at(0), FIRST)
    made.note("p", SendId(1, 4), at(1), SECOND)
    assert made.find("p", single(0), FIRST) == Stored(at(0), at(0))
    for other in (SECOND, None):
        assert made.find("p", single(0), other) == InDoubt(FIRST)
    assert made.find("p", SendId(4, 8), None) == InDoubt(SECOND), "one of its messages is"
    assert places(made) == {FIRST: at(0), SECOND: at(1)}
    made.decide(FIRST, is_committed=True)
    made.decide(SECOND, is_committed=False)
    for txn in (FIRST, SECOND, None):
        assert made.find("p", single(0), txn) == Stored(at(0), at(0))
        assert made.find("p", SendId(1, 4), txn) is None
    assert made.open_transactions == ()
    assert made.last_id("p") == 0


def test_the_next_part_of_a_message_is_new_in_its_own_transaction() -> None:
    """E6: a transaction is not in doubt about its own sends."""
    made = Sequences()
    made.note("p", SendId(0, 0, 0, 2), at(0), FIRST)
    assert made.find("p", SendId(0, 0, 1, 2), FIRST) is None
    made.note("p", SendId(0, 0, 1, 2), at(1), FIRST)
    assert made.find("p", SendId(0, 0, 1, 2), FIRST) == Stored(at(1), at(1))


def test_an_unfinished_message_of_a_committed_transaction_is_not_stored() -> None:
    """E6: a resend in another transaction is stored completely; otherwise nobody could read the message."""
    made = Sequences()
    made.note("p", SendId(0, 0, 0, 2), at(0), FIRST)
    assert made.find("p", SendId(0, 0, 0, 2), SECOND) == InDoubt(FIRST)
    made.decide(FIRST, is_committed=True)
    assert made.find("p", SendId(0, 0, 0, 2), SECOND) is None
    made.note("q", SendId(0, 0, 0, 2), at(1), None)
    assert made.find("q", SendId(0, 0, 0, 2), SECOND) is None


def test_what_is_written_down_of_open_transactions() -> None:
    """E6: their sends are stored separately, so that the transactions' fate counts after a restart, too."""
    made = noted(single(0))
    made.note("p", single(1), at(1), FIRST)
    made.note("q", SendId(0, 0, 0, 2), at(2), FIRST)
    made.note("p", single(2), at(3), SECOND)
    found = read(written(made))
    assert written(found) == written(made)
    assert places(found) == {FIRST: at(2), SECOND: at(3)}
    assert found.find("p", single(1), FIRST) == Stored(EARLIEST, at(3))
    assert found.find("q", SendId(0, 0, 0, 2), None) == InDoubt(FIRST)
    found.decide(FIRST, is_committed=False)
    found.decide(SECOND, is_committed=True)
    assert found.find("p", single(1), None) is None
    assert found.find("p", single(2), None) is not None


def test_a_receipt_never_names_the_position_of_an_aborted_send() -> None:
    """E6: this holds even for ids that count as stored only because ranges were joined."""
    made = noted(single(0))
    made.note("p", single(2), at(1), FIRST)
    made.decide(FIRST, is_committed=False)
    for number in range(RANGES_MAX + 1):
        made.note("p", single(4 + 2 * number), at(2 + number), None)
    assert made.find("p", single(2), None) == Stored(EARLIEST, at(2 + RANGES_MAX))


def test_a_producer_that_sends_nothing_is_forgotten() -> None:
    """K26: time is that of the topic's newest entry, so it stands still if nobody sends."""
    made = Sequences()
    made.note("idle", single(0), at(0), None, 1_000)
    made.note("busy", single(0), at(1), None, 1_000 + IDLE_MS - 1)
    made.forget_idle(0)
    assert made.knows("idle")
    made.note("busy", single(1), at(2), None, 1_000 + IDLE_MS)
    assert made.knows("idle"), "that takes a snapshot"
    made.forget_idle(0)
    assert not made.knows("idle")
    assert made.find("idle", single(0), None) is None
    assert written(made).keys() == {"busy"}


def test_a_connected_producer_is_not_forgotten() -> None:
    """K26: nor is it by the next owner, to which it has not connected yet."""
    made = Sequences()
    assert made.connect("idle")
    made.note("idle", single(0), at(0), None, 1_000)
    for hours in range(1, 50):
        made.note("busy", single(hours), at(hours), None, 1_000 + hours * IDLE_MS // 4)
        made.forget_idle(0)
    found = read(written(made))
    found.note("busy", single(50), at(50), None, 1_000 + 50 * IDLE_MS // 4)
    for sequences in (made, found):
        sequences.forget_idle(0)
        assert sequences.last_id("idle") == 0
    made.disconnect("idle")
    made.note("busy", single(99), at(99), None, 1_000 + 99 * IDLE_MS)
    made.forget_idle(0)
    assert not made.knows("idle")


def test_a_producer_with_a_transaction_open_is_not_forgotten() -> None:
    """K26, E6: its resend in that transaction is recognised, however long the transaction lasts."""
    made = Sequences()
    made.note("p", single(0), at(0), FIRST, 1_000)
    made.note("busy", single(0), at(1), None, 1_000 + 9 * IDLE_MS)
    made.forget_idle(0)
    assert made.find("p", single(0), FIRST) is not None
    made.decide(FIRST, is_committed=True)
    made.forget_idle(0)
    assert not made.knows("p")


def test_a_clock_that_is_set_back_lets_no_producer_be_forgotten_early() -> None:
    """K26, E15: the time of the log stands still until the clock has caught up."""
    made = Sequences()
    made.note("p", single(0), at(0), None, 9 * IDLE_MS)
    made.note("busy", single(0), at(1), None, IDLE_MS)
    made.note("p", single(1), at(2), None, IDLE_MS)
    made.note("busy", single(1), at(3), None, 10 * IDLE_MS - 1)
    made.forget_idle(0)
    assert made.knows("p")


def test_a_clock_that_steps_forward_lets_producers_be_forgotten_early_by_the_step() -> None:
    """K26, E15: only the next owner takes the new time, and its entries have it."""
    made, step = Sequences(), IDLE_MS * 2 // 3
    made.note("p", single(0), at(0), None, 1_000)
    made.note("busy", single(0), at(1), None, 1_000 + step)
    made.forget_idle(0)
    assert made.knows("p")
    made.note("busy", single(1), at(2), None, 1_000 + step + IDLE_MS - step - 1)
    made.forget_idle(0)
    assert made.knows("p")
    made.note("busy", single(2), at(3), None, 1_000 + step + IDLE_MS - step)
    made.forget_idle(0)
    assert not made.knows("p")


def test_a_producer_that_was_closed_for_good_is_forgotten_soon() -> None:
    """K26: nobody uses a generated name again. A client that only timed out comes back before."""
    made = Sequences()
    for number, name in enumerate(("closed", "back", "open")):
        made.connect(name)
        made.note(name, single(0), at(number), FIRST if name == "open" else None)
        made.disconnect(name, closed_at=100)
    made.forget_idle(100 + CLOSED_SECONDS - 1)
    assert all(made.knows(name) for name in ("closed", "back", "open"))
    assert made.connect("back")
    made.forget_idle(100 + CLOSED_SECONDS)
    made.disconnect("back")
    made.forget_idle(100 + 2 * CLOSED_SECONDS)
    assert [made.knows(name) for name in ("closed", "back", "open")] == [False, True, True]
    made.decide(FIRST, is_committed=False)
    made.forget_idle(100 + 2 * CLOSED_SECONDS)
    assert not made.knows("open")


def test_a_producer_that_sent_nothing_leaves_nothing() -> None:
    """E16: it has a place only while it is connected, and no snapshot has it."""
    made = Sequences()
    assert made.connect("p")
    assert (len(made), made.knows("p"), written(made)) == (1, False, {})
    made.disconnect("p")
    assert len(made) == 0


def test_the_one_that_is_idle_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """K26, E8: neither a connected one nor one with a transaction open does. Then a new one is refused."""
    monkeypatch.setattr(module, "PRODUCERS_MAX", 4)
    made = Sequences()
    made.connect("connected")
    for number, (name, txn) in enumerate(
        (("connected", None), ("open", FIRST), ("first", None), ("second", None), ("first", None))
    ):
        made.note(name, single(number), at(number), txn)
    assert made.connect("new")
    assert [made.knows(name) for name in ("connected", "open", "first", "second")] == [True, True, True, False]
    assert made.connect("newer")
    assert not made.knows("first")
    assert not made.connect("newest")
    assert made.connect("connected"), "it has its place"
    made.note("in the log", single(0), at(9), None)
    assert made.knows("in the log"), "what was stored is remembered, although there is no place"
    made.decide(FIRST, is_committed=True)
    assert made.connect("newest")
    assert not made.knows("open")
    made.disconnect("newest")
    assert made.connect("another")


def test_sends_in_open_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """K26, E8: further ones are refused, and nothing of an open transaction is forgotten."""
    monkeypatch.setattr(module, "OPEN_MAX", 6)
    monkeypatch.setattr(module, "OPEN_OF_PRODUCER_MAX", 3)
    monkeypatch.setattr(module, "PRODUCERS_OF_TXN_MAX", 2)
    made = Sequences()
    txns = [TxnId(0, number) for number in range(9)]

    def send(name: str, txn: TxnId) -> bool:
        if not made.takes(name, txn):
            return False
        made.note(name, single(0), at(0), txn)
        return True

    assert [send("p", txn) for txn in txns[:4]] == [True, True, True, False]
    assert made.takes("p", txns[0])
    assert made.takes("p", None)
    assert [send(name, txns[0]) for name in ("q", "r")] == [True, False]
    assert [send("s", txn) for txn in txns[4:]] == [True, True, False, False, False]
    assert len(made.open_transactions) == 5
    assert isinstance(made.find("p", single(0), txns[0]), Stored)
    made.decide(txns[0], is_committed=False)
    assert send("s", txns[6])


def test_gaps_of_all_producers_are_bounded() -> None:
    """E16: each record of a snapshot fits in the metadata store, whatever clients do; the latest sends are known."""
    made = Sequences("creation")
    for number in range(60):
        for producer in range(500):
            txn = TxnId(0, number % 2) if producer % 2 else None
            made.note(f"{producer:0{NAME_BYTES_MAX}}", single(2**63 + 2 * number), at(number), txn)
    assert made.fit_shards() > 1
    sizes = [len(orjson.dumps(made.shard_to_json(number))) for number in range(made.shard_count)]
    assert max(sizes) < 1 << 20
    kept = written(made).values()
    gaps = sum(len(sends["ranges"]) - 1 for fields in kept for sends in (fields, *fields["open"]) if sends["ranges"])
    assert gaps == GAPS_OF_RECORD_MAX, "it was one record"
    for producer in range(500):
        assert made.last_id(f"{producer:0{NAME_BYTES_MAX}}") == 2**63 + 2 * 59


def test_gaps_are_counted_through_decisions_and_departures() -> None:
    """E16: a count that drifts would forget too much, or too little."""
    made = Sequences()
    for entry in range(400):
        name, txn = f"p{entry % 7}", (None, FIRST, SECOND)[entry % 3]
        made.note(name, single(3 * entry), at(entry), txn, entry)
    made.decide(FIRST, is_committed=True)
    made.decide(SECOND, is_committed=False)
    for name in ("p0", "p1"):
        made.disconnect(name, closed_at=0)
    made.forget_idle(CLOSED_SECONDS)
    found = read(written(made))
    for sequences in (made, found):
        assert sequences._gaps == sum(producer.gaps for producer in sequences._producers.values())
        assert sum(sequences._shards._gaps_of_shards) == sequences._gaps
        assert sequences._gaps_open == 0


def test_the_ranges_of_an_open_transaction_are_forgotten_from_the_lowest() -> None:
    """E6: joined ranges would count as stored in another transaction whose ids lie between them."""
    made = Sequences()
    for number in range(RANGES_MAX + 1):
        made.note("p", single(2 * number), at(number), FIRST)
    made.decide(FIRST, is_committed=True)
    assert made.find("p", single(0), SECOND) is None
    assert made.find("p", single(1), SECOND) is None
    assert made.find("p", single(2), SECOND) is not None
