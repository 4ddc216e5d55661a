"""Position arithmetic, compared with a plain list of all positions."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import LedgerListCorrupt
from storage.ledger_list import LedgerList
from storage.ledger_record import LEDGERS_MAX, UNOWNED, LedgerInfo, ManagedLedgerRecord, Trimmed, leader_epochs
from storage.metadata.records import RECORD_BYTES_MAX
from storage.position import EARLIEST, LATEST, Position
from storage.writer import Writer


def info(ledger: int, entries: int, *, first_index: int = 0) -> LedgerInfo:
    return LedgerInfo(ledger, first_index, entries, entries * 2, entries * 100, 1_000 + ledger, closed=True)


def listing(sizes: dict[int, int], *, open_id: int | None = None, open_entries: int = 0) -> LedgerList:
    index = 0
    infos = []
    for ledger, entries in sizes.items():
        infos.append(info(ledger, entries, first_index=index))
        index += entries * 2
    made = LedgerList(infos)
    if open_id is not None:
        made.open(open_id)
        made.open_entries = open_entries
    return made


@st.composite
def lists(draw: st.DrawFn) -> tuple[LedgerList, list[Position]]:
    ids = sorted(draw(st.sets(st.integers(0, 12), max_size=5)))
    sizes = {ledger: draw(st.integers(1, 4)) for ledger in ids}
    open_id = 13 + draw(st.integers(0, 2)) if draw(st.booleans()) else None
    open_entries = draw(st.integers(0, 4)) if open_id is not None else 0
    made = listing(sizes, open_id=open_id, open_entries=open_entries)
    everything = [Position(ledger, entry) for ledger, entries in sizes.items() for entry in range(entries)]
    if open_id is not None:
        everything += [Position(open_id, entry) for entry in range(open_entries)]
    return made, everything


positions = st.one_of(st.just(EARLIEST), st.just(LATEST), st.builds(Position, st.integers(-1, 17), st.integers(-1, 6)))


@given(lists(), positions, positions)
def test_arithmetic_agrees_with_a_plain_list(made: tuple[LedgerList, list[Position]], a: Position, b: Position) -> None:
    ledgers, everything = made
    above = [position for position in everything if position > a]
    below = [position for position in everything if position < a]
    assert ledgers.at_or_after(a) == next((position for position in everything if position >= a), None)
    assert ledgers.previous(a) == (below[-1] if below else EARLIEST)
    assert ledgers.entries_between(a, b) == sum(a < position <= b for position in everything)
    assert ledgers.last() == (everything[-1] if everything else EARLIEST)
    following = ledgers.next_after(a)
    if above:
        assert following == above[0]
    elif a != LATEST:
        assert following > a
        assert following >= ledgers.next_position()
        if ledgers.open_id is not None and a < ledgers.next_position():
            assert following == ledgers.next_position()


def test_the_next_place_behind_the_last_entry_is_where_the_next_one_goes() -> None:
    ledgers = listing({3: 2}, open_id=5)
    assert ledgers.next_after(Position(3, 1)) == Position(5, 0)
    assert ledgers.next_after(Position(4, 7)) == Position(5, 0)
    ledgers.open_entries = 1
    assert ledgers.next_after(Position(5, 0)) == Position(5, 1)
    assert ledgers.previous(Position(5, 0)) == Position(3, 1)


def test_an_open_ledger_is_closed_and_forgotten_if_it_is_empty() -> None:
    ledgers = listing({3: 2}, open_id=5)
    ledgers.close(None)
    assert ledgers.last() == Position(3, 1)
    assert ledgers.next_position() == Position(3, 2)
    ledgers.open(7)
    ledgers.open_entries = 3
    ledgers.close(info(7, 3))
    assert ledgers.last() == Position(7, 2)


def test_trimming_keeps_the_last_position_and_the_index() -> None:
    ledgers = listing({1: 2, 2: 3})
    assert [gone.id for gone in ledgers.trim(Position(2, 1))] == [1]
    assert ledgers.trimmed == Trimmed(Position(1, 1), 4)
    assert [gone.id for gone in ledgers.trim(LATEST)] == [2]
    assert ledgers.last() == Position(2, 2)
    assert ledgers.trimmed.next_index == 10
    assert ledgers.previous(LATEST) == EARLIEST


@pytest.mark.parametrize(("index", "ledger"), [(0, 1), (3, 1), (4, 2), (9, 2), (10, None)])
def test_a_message_index_names_its_ledger(index: int, ledger: int | None) -> None:
    assert listing({1: 2, 2: 3}).ledger_of_index(index) == ledger


@pytest.mark.parametrize(("timestamp_ms", "ledger"), [(0, 1), (1_001, 1), (1_002, 2), (1_003, None)])
def test_a_time_names_its_ledger(timestamp_ms: int, ledger: int | None) -> None:
    assert listing({1: 2, 2: 3}).ledger_at_time(timestamp_ms) == ledger


def test_the_record_survives_its_encoding() -> None:
    record = ManagedLedgerRecord(
        "7",
        (info(7, 3), LedgerInfo(9, 6, epoch=4)),
        9,
        4,
        sealed=True,
        trimmed=Trimmed(Position(5, 4), 12),
        removing=(3, 5),
    )
    assert ManagedLedgerRecord.decode(record.encode()) == record
    plain = ManagedLedgerRecord("7", (), 9)
    assert ManagedLedgerRecord.decode(plain.encode()) == plain


DAMAGED = {
    "creation_id": 7,
    "newest_id": None,
    "trimmed": {"position": ["x", 1], "next_index": 0},
    "removing": [None],
    "writers": [["folder", "broker", 1, "stream"]],
    "ledgers": [[None, 0, 3, 3, 100, 1_000, True, 0, 0]],
    "aborted_owners": [["owner", [9]]],
}


@pytest.mark.parametrize("field", DAMAGED)
def test_a_record_with_a_field_of_another_type_is_damaged(field: str) -> None:
    """E11: a text in place of a ledger's id would end the journal, and the process with it."""
    writer = Writer("folder", "broker", 1, 2)
    record = ManagedLedgerRecord("7", (LedgerInfo(9, 0, 3, 3, 100, 1_000, True, 1, 5, writer),), 9)
    fields = orjson.loads(record.encode())
    assert ManagedLedgerRecord.decode(orjson.dumps(fields)) == record
    with pytest.raises(LedgerListCorrupt, match="another type"):
        ManagedLedgerRecord.decode(orjson.dumps(fields | {field: DAMAGED[field]}))


def test_a_record_of_as_many_ledgers_as_there_may_be_fits_every_store() -> None:
    """E18: with large numbers, many writers, and 2,000 more ledgers from changes of owner."""
    writers = [Writer("f" * 32, f"broker-{number}", number, 2**63 + number) for number in range(16)]
    closed = tuple(
        LedgerInfo(
            *(10**6 + n, 10**10 + n, 10**6, 10**6, 2**28, 1_800_000_000_000 + n, True),
            *(n % 3, 10**12 + n // 9 if n % 3 else 0, writers[n % 16]),
        )
        for n in range(LEDGERS_MAX + 2_000)
    )
    record = ManagedLedgerRecord("7", closed, 2 * 10**6, removing=tuple(range(1_000)))
    assert len(record.encode()) < RECORD_BYTES_MAX
    assert ManagedLedgerRecord.decode(record.encode()) == record


def test_the_epochs_of_leaders_are_read_without_the_list() -> None:
    """K44: the next owner takes the next epoch, unless nobody writes any more. Earlier releases recorded none."""
    record = ManagedLedgerRecord("c", (info(1, 3),), 1, leader_epoch=4)
    assert leader_epochs(record.encode()) == (4, 5)
    assert leader_epochs(replace(record, sealed=True).encode()) == (4, 4)
    fields = orjson.loads(record.encode())
    del fields["leader_epoch"]
    assert leader_epochs(orjson.dumps(fields)) == (-1, 0) == UNOWNED
    for damaged in (b"", b"[]", b"{}", orjson.dumps({**fields, "leader_epoch": "4"})):
        with pytest.raises(LedgerListCorrupt):
            leader_epochs(damaged)


def test_any_ledger_of_a_log_that_an_earlier_release_marked_may_have_markers() -> None:
    """K35: that release did not record where they begin."""
    record = ManagedLedgerRecord("c", (info(1, 3), info(4, 3)), 4, is_marked=True, marked_from=4)
    assert ManagedLedgerRecord.decode(record.encode()) == record
    fields = orjson.loads(record.encode())
    del fields["marked_from"]
    assert ManagedLedgerRecord.decode(orjson.dumps(fields)) == replace(record, marked_from=0)
