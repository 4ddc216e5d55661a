"""How hidden entries are counted: what is remembered, read and written, and what bounds it."""

import pytest

from storage.entry import EntryFormat
from storage.errors import NoSpace
from storage.hidden_entries import Hidden
from storage.hidden_lists import HiddenLists
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS
from tests.txn.test_marker_buffer import Host, Owner
from txn import hidden_log


def lists(files: SimulatedFiles) -> int:
    return sum(name.endswith(".hidden") for name in files.names(LEDGERS))


async def aborts(owner: Owner, first: int, count: int) -> None:
    """Write transactions of two records in a batch, and abort them."""
    for number in range(first, first + count):
        await owner.send(1, 2 * number, 2)
        await owner.end(1, is_commit=False)
    await owner.durable()


async def counted(owner: Owner, after: Position = EARLIEST, upto: Position = LATEST) -> Hidden:
    upto = min(upto, owner.buffer.readable.value)
    return await owner.buffer.hidden.count([(after, upto)])


async def test_a_large_abort_is_hidden_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """E8: no step hides more than so many entries. Whoever counts waits for the rest."""
    monkeypatch.setattr(hidden_log, "HIDDEN_AT_ONCE", 3)
    async with Host().owner() as owner:
        for number in range(10):
            await owner.send(1, number)
        await owner.end(1, is_commit=False)
        await owner.durable()
        known = owner.buffer.hidden.known_between(EARLIEST, owner.buffer.readable.value)
        assert known.entries == 3 + 1, "some of them, and the marker"
        assert await counted(owner) == Hidden(11, 11)


async def test_lists_that_were_not_used_for_long_are_evicted(
    autojump_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7, K35: a log of any length takes bounded memory, and is counted all the same."""
    monkeypatch.setattr(hidden_log, "CACHED_ENTRIES_MAX", 3)
    host = Host()
    async with host.owner() as owner:
        for number in range(6):
            await aborts(owner, 2 * number, 2)
            await owner.roll()
        await owner.buffer.hidden.work(owner.buffer.readable.value)
    async with host.owner() as owner:
        for _again in range(2):
            for info in owner.ledger.closed:
                # The first entry may be a snapshot. Behind it are a batch and a marker, twice.
                last = Position(info.id, info.entries - 1)
                assert await counted(owner, Position(info.id, info.entries - 4), last) == Hidden(3, 4)
        assert len(owner.buffer.hidden._found) == 1


async def test_a_list_that_finds_no_space_is_written_later(
    autojump_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E14: a full disk keeps nobody from counting, and the next ledger that closes brings another try."""
    host = Host()
    async with host.owner() as owner:
        await aborts(owner, 0, 2)
        await owner.roll()

        async def refused(*_given: object) -> None:
            raise NoSpace("the disk is full")

        with monkeypatch.context() as full:
            full.setattr(HiddenLists, "write", refused)
            assert not await owner.buffer.hidden.work(owner.buffer.readable.value)
        assert (lists(host.files), await counted(owner)) == (0, Hidden(4, 6))
        await owner.buffer.hidden.work(owner.buffer.readable.value)
        assert (lists(host.files), await counted(owner)) == (1, Hidden(4, 6))


async def test_a_ledger_waits_for_what_is_open_in_it(autojump_clock: None) -> None:
    """K35: its list is written once everything in it is decided, by whichever owner."""
    host = Host()
    async with host.owner() as owner:
        await owner.send(1, 0)
        await owner.send(2, 0)
        await owner.end(2, is_commit=False)
        await owner.roll()
        assert await owner.buffer.hidden.work(owner.buffer.readable.value), "it waits for the first producer"
        assert lists(host.files) == 0
        await owner.end(1, is_commit=False)
        await owner.durable()
        assert not await owner.buffer.hidden.work(owner.buffer.readable.value)
        assert lists(host.files) == 1
        total = await counted(owner)
        entries = await owner.entries()
        assert total.entries == sum(not owner.buffer.is_visible(entry) for entry in entries) == len(entries)


async def test_damaged_entries_count_and_leave_no_list(autojump_clock: None) -> None:
    """E11: they might be messages. If the file is restored, the ledger is read again."""
    host = Host()
    async with host.owner() as owner:
        await aborts(owner, 0, 3)
        last = owner.ledger.last_position
        await owner.roll()
        await owner.send(9, 0, in_txn=False)
        await owner.durable()
    damaged = LEDGERS / f"{last.ledger:020d}.ledger"
    async with host.owner():
        pass  # It has replayed the journal, so nothing mends the damage.
    host.files.flip(damaged, 8 * 60)
    async with host.owner() as owner:
        assert await counted(owner, upto=last) == Hidden()
        await owner.buffer.hidden.work(owner.buffer.readable.value)
        assert lists(host.files) == 0
    host.files.flip(damaged, 8 * 60)
    async with host.owner() as owner:
        assert await counted(owner, upto=last) == Hidden(6, 9)
        await owner.buffer.hidden.work(owner.buffer.readable.value)
        assert lists(host.files) == 1


async def test_ledgers_before_the_first_producer_are_not_read(
    autojump_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K35: nothing can be hidden in them. The log's record has where numbered producers began."""
    host = Host()
    async with host.owner() as owner:
        for _ in range(3):
            owner.buffer.append(b"plain", 1, None, EntryFormat.PULSAR)
            await owner.roll()
        await aborts(owner, 0, 1)
        await owner.roll()
    async with host.owner() as owner:
        *before, marked = [info.id for info in owner.ledger.closed]
        asked = []
        read = owner.ledger.read

        async def noted(start: Position, **options: int) -> object:
            asked.append(start.ledger)
            return await read(start, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(owner.ledger, "read", noted)
        assert await counted(owner) == Hidden(2, 3)
        assert {*asked} == {marked}
        assert len(before) == 3
