"""What is remembered of producers, and its bounds."""

import orjson

from broker.deduplication import sequences as module
from broker.deduplication.sequences import (
    NAME_BYTES_MAX,
    OPEN_MAX,
    PRODUCERS_MAX,
    RANGES_MAX,
    RANGES_TOTAL_MAX,
    InDoubt,
    Sequences,
    Stored,
)
from broker.entry_codecs import SendId
from storage.entry import TxnId
from storage.position import EARLIEST, Position


def single(number: int) -> SendId:
    return SendId(number, number)


def at(entry: int) -> Position:
    return Position(1, entry)


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
    assert made.to_json()["p"]["ranges"] == [(0, 3)]


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
    read = Sequences.from_json(made.to_json())
    assert read.to_json() == made.to_json()
    assert read.find("p", single(0), None) == Stored(EARLIEST, at(2))
    assert read.find("p", SendId(3, 3, 0, 2), None) is not None
    assert read.find("p", SendId(3, 3, 1, 2), None) is None
    assert read.find("p", single(1), None) is None


def test_ranges_are_bounded() -> None:
    """The lowest ranges are joined; the newest gaps stay."""
    made = noted(*(single(10 * number) for number in range(RANGES_MAX + 5)))
    assert len(made.to_json()["p"]["ranges"]) == RANGES_MAX
    newest = 10 * (RANGES_MAX + 4)
    assert made.find("p", single(newest - 5), None) is None
    assert made.find("p", single(5), None) is not None


def test_producers_are_bounded() -> None:
    made = Sequences()
    for number in range(PRODUCERS_MAX + 1):
        made.note(f"p{number}", single(0), at(number), None)
        made.note("busy", single(number), at(number), None)
    assert len(made.to_json()) == PRODUCERS_MAX
    assert not made.knows("p0")
    assert made.knows("busy")
    for name in ("n" * (NAME_BYTES_MAX + 1), "ü" * NAME_BYTES_MAX, "\x01"):
        made.note(name, single(0), at(0), None)
        assert not made.knows(name)
    assert len(made.to_json()) == PRODUCERS_MAX


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
    assert made.open_transactions == {FIRST: at(0), SECOND: at(1)}
    made.decide(FIRST, is_committed=True)
    made.decide(SECOND, is_committed=False)
    for txn in (FIRST, SECOND, None):
        assert made.find("p", single(0), txn) == Stored(at(0), at(0))
        assert made.find("p", SendId(1, 4), txn) is None
    assert made.open_transactions == {}
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
    read = Sequences.from_json(orjson.loads(orjson.dumps(made.to_json())))
    assert orjson.dumps(read.to_json()) == orjson.dumps(made.to_json())
    assert read.open_transactions == {FIRST: at(2), SECOND: at(3)}
    assert read.find("p", single(1), FIRST) == Stored(EARLIEST, at(3))
    assert read.find("q", SendId(0, 0, 0, 2), None) == InDoubt(FIRST)
    read.decide(FIRST, is_committed=False)
    read.decide(SECOND, is_committed=True)
    assert read.find("p", single(1), None) is None
    assert read.find("p", single(2), None) is not None


def test_a_receipt_never_names_the_position_of_an_aborted_send() -> None:
    """E6: this holds even for ids that count as stored only because ranges were joined."""
    made = noted(single(0))
    made.note("p", single(2), at(1), FIRST)
    made.decide(FIRST, is_committed=False)
    for number in range(RANGES_MAX + 1):
        made.note("p", single(4 + 2 * number), at(2 + number), None)
    assert made.find("p", single(2), None) == Stored(EARLIEST, at(2 + RANGES_MAX))


def test_a_producer_is_forgotten_with_its_open_transactions() -> None:
    """E6, E16: a later decision changes nothing."""
    made = Sequences()
    made.note("p", single(0), at(0), FIRST)
    for number in range(PRODUCERS_MAX):
        made.note(f"p{number}", single(0), at(1), SECOND)
    assert not made.knows("p")
    assert made.open_transactions == {SECOND: at(1)}
    for txn in (FIRST, SECOND):
        made.decide(txn, is_committed=True)


def test_forgotten_producers_leave_room_for_open_transactions() -> None:
    """E6, E16: many producers that came and left do not evict those that are connected."""
    made = Sequences()
    for number in range(2 * OPEN_MAX):
        made.note(f"p{number}", single(0), at(number), TxnId(1, number))
    made.note("p", single(0), at(2 * OPEN_MAX), FIRST)
    assert len(made.open_transactions) == PRODUCERS_MAX


def test_open_transactions_are_bounded() -> None:
    """E6, E16: the oldest is forgotten first; it delays nothing, and its decision changes nothing."""
    made = Sequences()
    for number in range(OPEN_MAX + 1):
        made.note("p", single(number), at(number), TxnId(0, number))
    assert len(made.open_transactions) == OPEN_MAX
    assert made.find("p", single(0), None) is None
    assert made.find("p", single(1), None) == InDoubt(TxnId(0, 1))
    made.decide(TxnId(0, 0), is_committed=True)
    assert made.find("p", single(0), None) is None


def test_ranges_of_all_producers_are_bounded() -> None:
    """E16: a snapshot fits into one metadata record, whatever clients do; the latest sends are still known."""
    made = Sequences()
    for number in range(60):
        for producer in range(PRODUCERS_MAX):
            txn = TxnId(0, number % 2) if producer % 2 else None
            made.note(f"{producer:0{NAME_BYTES_MAX}}", single(2**63 + 2 * number), at(number), txn)
    kept = made.to_json().values()
    total = sum(len(sends["ranges"]) for fields in kept for sends in (fields, *fields["open"]))
    assert total <= RANGES_TOTAL_MAX + PRODUCERS_MAX
    assert len(orjson.dumps(made.to_json())) < 1 << 20
    for producer in range(PRODUCERS_MAX):
        assert made.last_id(f"{producer:0{NAME_BYTES_MAX}}") == 2**63 + 2 * 59


def test_the_ranges_of_an_open_transaction_are_forgotten_from_the_lowest() -> None:
    """E6: joined ranges would count as stored in another transaction whose ids lie between them."""
    made = Sequences()
    for number in range(RANGES_MAX + 1):
        made.note("p", single(2 * number), at(number), FIRST)
    made.decide(FIRST, is_committed=True)
    assert made.find("p", single(0), SECOND) is None
    assert made.find("p", single(1), SECOND) is None
    assert made.find("p", single(2), SECOND) is not None
