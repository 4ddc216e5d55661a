"""Cursors: what is durable when, who may write, and what survives cancellation, moves, deletion and re-creation."""

import weakref
from collections.abc import Sequence
from typing import NoReturn

import pytest
import trio
import trio.testing
from hypothesis import strategies as st

from storage.cursor import (
    WRITE_LINGER_SECONDS,
    Cursor,
    CursorClosed,
    CursorDeleted,
    CursorError,
    CursorFailed,
    CursorLost,
    CursorMoved,
    CursorRefused,
    NonDurableCursor,
    cursor_key,
)
from storage.errors import SPACE_RETRY_SECONDS
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ChangeSetTooLarge, Check, Committed, Op, StoreFull, StoreUnavailable
from storage.position import EARLIEST, LATEST, Position
from tests.support.reference_counts import collector_stopped
from tests.support.schedules import every_schedule
from tests.support.stream import MemoryStream

CLAIM = "/owners/x"


class SlowStore(MemoryStore):
    """A store whose writes wait at a gate, and that counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self.gate: trio.Event | None = None

    async def commit(self, ops: Sequence[Op]) -> Committed:
        self.commits += 1
        if self.gate is not None:
            await self.gate.wait()
        return await super().commit(ops)


def stream_of(entries: int) -> MemoryStream:
    stream = MemoryStream()
    for _ in range(entries):
        stream.append(messages=10)
    return stream


async def open_cursor(
    store: MemoryStore, stream: MemoryStream, *, claim: Check | None = None, start: Position = EARLIEST
) -> Cursor:
    return await Cursor.open("sub/1", ledger=stream, metadata=store, claim=claim, start=start)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (EARLIEST, EARLIEST),
        (LATEST, Position(7, 4)),
        (Position(7, 2), Position(7, 2)),
        (Position(9, 9), Position(7, 4)),
    ],
)
async def test_opening_is_durable(start: Position, expected: Position) -> None:
    """A new cursor's position is on disk before `open` returns; a later `open` finds it, whatever it requests."""
    store, stream = MemoryStore(), stream_of(5)
    cursor = await open_cursor(store, stream, start=start)
    assert cursor.mark_delete == cursor.durable.value == expected
    assert await store.get(cursor_key(stream.name, "sub/1")) is not None
    again = await open_cursor(store, stream, start=Position(7, 0))
    assert again.mark_delete == expected
    assert again.creation_id == cursor.creation_id


async def test_names_cannot_meet() -> None:
    """A slash in a name is not a slash in the key."""
    assert cursor_key("a/b", "c") != cursor_key("a", "b/c")


async def test_reopening_finds_ranges_and_bits(autojump_clock: trio.testing.MockClock) -> None:
    """D12: of ten batched messages one is acknowledged; after a restart nine remain, and ranges and properties, too."""
    store, stream = MemoryStore(), stream_of(6)
    cursor = await Cursor.open("s", ledger=stream, metadata=store, claim=None, start=EARLIEST, properties={"a": "b"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        cursor.acknowledge(Position(7, 0))
        cursor.acknowledge_batch(Position(7, 1), 0b11_1111_1110, 10)
        cursor.acknowledge(Position(7, 3))
        cursor.acknowledge(Position(7, 4))
        await cursor.synced()
        nursery.cancel_scope.cancel()
    again = await Cursor.open("s", ledger=stream, metadata=store, claim=None, start=LATEST)
    assert again.mark_delete == Position(7, 0)
    assert again.remaining_bits(Position(7, 1)) == 0b11_1111_1110
    assert [again.is_acknowledged(position) for position in stream.positions] == [True, False, False, True, True, False]
    assert again.entries_above == 2
    assert again.first_unacknowledged() == Position(7, 1)
    assert again.properties == {"a": "b"}


async def test_bits_above_the_batch_count_for_nothing() -> None:
    cursor = NonDurableCursor("r", ledger=stream_of(2), start=EARLIEST)
    cursor.acknowledge_batch(Position(7, 0), 0b1100, 2)
    assert cursor.mark_delete == Position(7, 0)


async def test_writes_coalesce(autojump_clock: trio.testing.MockClock) -> None:
    """A thousand acknowledgements during one write cost one more write, and nobody waits for a separate one."""
    store, stream = SlowStore(), stream_of(1000)
    cursor = await open_cursor(store, stream)
    store.commits = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        store.gate = trio.Event()
        cursor.acknowledge(stream.positions[0])
        nursery.start_soon(cursor.synced)
        await trio.testing.wait_all_tasks_blocked()
        assert store.commits == 1
        for position in stream.positions:
            cursor.acknowledge(position)
        for _ in range(5):
            nursery.start_soon(cursor.synced)
        await trio.testing.wait_all_tasks_blocked()
        assert cursor.durable.value == EARLIEST, "nothing is durable while the write hangs"
        store.gate.set()
        await cursor.durable.wait_for(stream.last_position)
        assert store.commits == 2
        nursery.cancel_scope.cancel()


async def test_unawaited_acknowledgements_are_written_after_the_linger(autojump_clock: trio.testing.MockClock) -> None:
    store, stream = SlowStore(), stream_of(3)
    cursor = await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        began = trio.current_time()
        cursor.acknowledge(Position(7, 0))
        await trio.testing.wait_all_tasks_blocked()
        cursor.acknowledge(Position(7, 1))
        await cursor.durable.wait_for(Position(7, 1))
        assert trio.current_time() - began == pytest.approx(WRITE_LINGER_SECONDS)
        assert store.commits == 2, "one to create it, one for both"
        cursor.acknowledge(Position(7, 2))
        before = trio.current_time()
        await cursor.synced()
        assert trio.current_time() == before, "whoever waits does not linger"
        cursor.acknowledge(Position(7, 2))
        cursor.acknowledge_cumulative(Position(7, 1))
        cursor.acknowledge_batch(Position(7, 0), 1)
        await trio.testing.wait_all_tasks_blocked()
        await cursor.synced()
        assert store.commits == 3, "what was known already is not written"
        nursery.cancel_scope.cancel()


async def test_a_stale_owner_writes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """D4: once the claim has another version, the cursor ends, its waiters are told, and the record is unchanged."""
    store, stream = MemoryStore(), stream_of(3)
    version = await store.put(CLAIM, b"a")
    cursor = await open_cursor(store, stream, claim=Check(CLAIM, version))
    record = await store.get(cursor_key(stream.name, "sub/1"))
    outcomes: list[str] = []

    async def waiter() -> None:
        with pytest.raises(CursorLost):
            await cursor.synced()
        outcomes.append("synced")

    async def watermark_waiter() -> None:
        with pytest.raises(CursorLost):
            await cursor.durable.wait_for(Position(7, 0))
        outcomes.append("durable")

    await store.put(CLAIM, b"b")
    cursor.acknowledge(Position(7, 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter)
        nursery.start_soon(watermark_waiter)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CursorLost):
            await cursor.run()
    assert sorted(outcomes) == ["durable", "synced"]
    assert await store.get(cursor_key(stream.name, "sub/1")) == record
    for late in (cursor.synced, cursor.delete, cursor.close):
        with pytest.raises(CursorLost):
            await late()
    with pytest.raises(CursorLost):
        await cursor.seek(EARLIEST)
    with pytest.raises(CursorLost):
        await Cursor.open("new", ledger=stream, metadata=store, claim=Check(CLAIM, version), start=EARLIEST)


async def test_a_cursor_that_has_ended_is_freed_with_its_last_holder() -> None:
    """E16: the errors that callers got do not hold it."""
    cursor = await open_cursor(MemoryStore(), stream_of(2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        await cursor.close()
    cursor.acknowledge(Position(7, 0))
    gone = weakref.ref(cursor)
    with collector_stopped():
        for ask in (cursor.synced, cursor.written, cursor.delete):
            for _ in range(2):
                with pytest.raises(CursorClosed):
                    await ask()
        with pytest.raises(CursorClosed):
            cursor.move(EARLIEST)
        del cursor, ask, nursery
        assert gone() is None


async def test_two_cursors_of_one_record_cannot_both_write(autojump_clock: trio.testing.MockClock) -> None:
    """D4: even under one claim, a record is only written over its writer's own version."""
    store, stream = MemoryStore(), stream_of(3)
    one, two = await open_cursor(store, stream), await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        one.acknowledge(Position(7, 0))
        await one.synced()
        two.acknowledge(Position(7, 2))
        with pytest.raises(CursorLost):
            await two.run()
        nursery.cancel_scope.cancel()


async def test_a_failing_store_ends_the_cursor(autojump_clock: trio.testing.MockClock) -> None:
    class Broken(MemoryStore):
        is_broken = False

        async def commit(self, ops: Sequence[Op]) -> Committed:
            if self.is_broken:
                self._refuse()
            return await super().commit(ops)

        def _refuse(self) -> NoReturn:
            raise StoreUnavailable("no answer")

    store = Broken()
    cursor = await open_cursor(store, stream_of(1))
    store.is_broken = True
    cursor.acknowledge(Position(7, 0))
    with pytest.raises(CursorFailed):
        await cursor.run()
    with pytest.raises(CursorFailed):
        await cursor.durable.wait_for(Position(7, 0))
    for _ in range(2):
        with pytest.raises(CursorFailed) as told:
            await cursor.synced()
        assert (told.value.retriable, told.value.definite) == (True, False)
        assert told.traceback[-1].name == "_wait", "and nobody is shown where others were told"
        assert len(told.traceback) == 3


async def test_a_record_that_the_store_refuses_was_not_written_and_never_will_be(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """E11: no retry is needed, and the outcome is known."""

    class Strict(MemoryStore):
        is_strict = False

        async def commit(self, ops: Sequence[Op]) -> Committed:
            if self.is_strict:
                self._refuse()
            return await super().commit(ops)

        def _refuse(self) -> NoReturn:
            raise ChangeSetTooLarge("above 1 MiB")

    store = Strict()
    cursor = await open_cursor(store, stream_of(1))
    store.is_strict = True
    cursor.acknowledge(Position(7, 0))
    with pytest.raises(CursorRefused) as refused:
        await cursor.run()
    assert (refused.value.retriable, refused.value.definite) == (False, True)


async def test_seek_goes_back_under_a_new_watermark(autojump_clock: trio.testing.MockClock) -> None:
    """The watermark from before the seek fails with its own error; the new one starts at the lower position."""
    store, stream = MemoryStore(), stream_of(9)
    cursor = await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        cursor.acknowledge_cumulative(Position(7, 6))
        cursor.acknowledge(Position(7, 8))
        await cursor.synced()
        before = cursor.durable
        await cursor.seek(Position(7, 1))
        assert cursor.durable is not before
        assert cursor.durable.value == cursor.mark_delete == Position(7, 1)
        assert not cursor.is_acknowledged(Position(7, 8))
        with pytest.raises(CursorMoved):
            await before.wait_for(Position(7, 8))
        await cursor.seek(LATEST)
        assert cursor.mark_delete == cursor.durable.value == Position(7, 8)
        nursery.cancel_scope.cancel()
    assert (await open_cursor(store, stream)).mark_delete == Position(7, 8)


async def test_seek_during_a_write(autojump_clock: trio.testing.MockClock) -> None:
    """A write from before the seek says nothing about the new position, and is never the last one on disk."""
    store, stream = SlowStore(), stream_of(9)
    cursor = await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        store.gate = trio.Event()
        cursor.acknowledge_cumulative(Position(7, 7))
        nursery.start_soon(cursor.synced)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1) as cancelled:
            await cursor.seek(Position(7, 3))
        assert cancelled.cancelled_caught
        assert cursor.mark_delete == Position(7, 3), "a cancelled seek has happened"
        assert cursor.durable.value == EARLIEST
        store.gate.set()
        await cursor.durable.wait_for(Position(7, 3))
        assert cursor.durable.value == Position(7, 3)
        nursery.cancel_scope.cancel()
    assert (await open_cursor(store, stream)).mark_delete == Position(7, 3)


async def test_deleted_and_made_again_is_another(autojump_clock: trio.testing.MockClock) -> None:
    """D16: a cursor of the same name has another creation id, and the deleted one writes nothing."""
    store, stream = MemoryStore(), stream_of(3)
    cursor = await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        cursor.acknowledge(Position(7, 0))
        await cursor.delete()
    assert await store.get(cursor_key(stream.name, "sub/1")) is None
    with pytest.raises(CursorDeleted):
        await cursor.synced()
    again = await open_cursor(store, stream)
    assert again.creation_id != cursor.creation_id
    assert again.mark_delete == EARLIEST


async def test_a_cancelled_delete_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    store, stream = SlowStore(), stream_of(3)
    cursor = await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        store.gate = trio.Event()
        cursor.acknowledge(Position(7, 0))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await cursor.delete()
        store.gate.set()
        await cursor.delete()
    assert await store.get(cursor_key(stream.name, "sub/1")) is None


async def test_delete_overtakes_close(autojump_clock: trio.testing.MockClock) -> None:
    """A deletion requested during the last write of a closing cursor is still made."""
    store, stream = SlowStore(), stream_of(3)
    cursor = await open_cursor(store, stream)

    async def close() -> None:
        with pytest.raises(CursorDeleted):
            await cursor.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        store.gate = trio.Event()
        cursor.acknowledge(Position(7, 0))
        nursery.start_soon(close)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(cursor.delete)
        await trio.testing.wait_all_tasks_blocked()
        store.gate.set()
    assert await store.get(cursor_key(stream.name, "sub/1")) is None


async def test_close_writes_the_rest(autojump_clock: trio.testing.MockClock) -> None:
    store, stream = MemoryStore(), stream_of(3)
    cursor = await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        cursor.acknowledge(Position(7, 0))
        await cursor.close()
    with pytest.raises(CursorClosed):
        await cursor.seek(EARLIEST)
    assert (await open_cursor(store, stream)).mark_delete == Position(7, 0)


async def test_cancelling_the_writer_tells_its_waiters(autojump_clock: trio.testing.MockClock) -> None:
    store, stream = SlowStore(), stream_of(3)
    cursor = await open_cursor(store, stream)
    store.gate = trio.Event()
    cursor.acknowledge(Position(7, 0))

    async def synced() -> None:
        with pytest.raises(CursorClosed):
            await cursor.synced()

    async with trio.open_nursery() as waiting:
        waiting.start_soon(synced)
        with trio.move_on_after(1):
            await cursor.run()


async def test_a_cancelled_wait_leaves_nothing_behind(autojump_clock: trio.testing.MockClock) -> None:
    cursor = await open_cursor(MemoryStore(), stream_of(3))
    cursor.acknowledge(Position(7, 0))
    with trio.move_on_after(1):
        await cursor.synced()
    assert cursor._waiters == []


async def test_a_reader_needs_no_store() -> None:
    """The non-durable cursor has the same interface; its progress counts as durable at once."""
    stream = stream_of(5)
    cursor = NonDurableCursor("reader", ledger=stream, start=LATEST)
    await cursor.run()
    assert cursor.mark_delete == Position(7, 4)
    old = cursor.durable
    await cursor.seek(EARLIEST)
    assert old.failure is not None
    cursor.acknowledge(Position(7, 0))
    await cursor.synced()
    assert cursor.durable.value == Position(7, 0)
    await cursor.close()
    assert isinstance(cursor.durable.failure, CursorClosed)
    await cursor.delete()
    assert isinstance(cursor.durable.failure, CursorDeleted)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("entry"), st.integers(0, 9)),
        st.tuples(st.just("cumulative"), st.integers(0, 9)),
        st.tuples(st.just("synced"), st.just(0)),
        st.tuples(st.just("seek"), st.integers(0, 9)),
        st.tuples(st.just("pause"), st.integers(1, 3)),
    ),
    max_size=12,
)


@every_schedule(examples_max=150, one=STEPS, two=STEPS, crash_after=st.integers(0, 60))
async def test_what_was_said_to_be_durable_survives_a_crash(
    one: list[tuple[str, int]], two: list[tuple[str, int]], crash_after: int
) -> None:
    """D3: in any task order and with any crash, `synced` and `durable` are always right."""
    store, stream = SlowStore(), stream_of(10)
    cursor = await open_cursor(store, stream)
    promised: set[Position] = set()
    acknowledged: set[Position] = set()
    moves = moves_done = 0

    async def client(steps: list[tuple[str, int]]) -> None:
        nonlocal moves, moves_done
        for kind, number in steps:
            if kind == "entry":
                cursor.acknowledge(stream.positions[number])
                acknowledged.add(stream.positions[number])
            elif kind == "cumulative":
                cursor.acknowledge_cumulative(stream.positions[number])
                acknowledged.update(stream.positions[: number + 1])
            elif kind == "pause":
                for _ in range(number):
                    await trio.lowlevel.checkpoint()
            else:
                if kind == "seek":
                    moves += 1
                    promised.clear()
                    acknowledged.clear()
                    acknowledged.update(stream.positions[: number + 1])
                made, this_move = set(acknowledged), moves
                await (cursor.synced() if kind == "synced" else cursor.seek(stream.positions[number]))
                if this_move == moves:
                    promised.update(made)
                    moves_done = moves

    async def crash() -> None:
        for _ in range(crash_after):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

    async def story(steps: list[tuple[str, int]]) -> None:
        try:
            await client(steps)
        except CursorError:
            assert nursery.cancel_scope.cancel_called

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        nursery.start_soon(story, one)
        nursery.start_soon(story, two)
        nursery.start_soon(crash)
    again = await open_cursor(store, stream)
    assert all(again.is_acknowledged(position) for position in promised)
    if moves == moves_done:
        assert {position for position in stream.positions if again.is_acknowledged(position)} <= acknowledged
    assert again.mark_delete >= cursor.durable.value


class FullStore(MemoryStore):
    """Refuses writes while its disk `is_full`."""

    is_full = False

    async def commit(self, ops: Sequence[Op]) -> Committed:
        if self.is_full:
            raise StoreFull("the disk is full")
        return await super().commit(ops)


async def test_what_is_acknowledged_on_a_full_disk_is_written_when_there_is_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """E13: the subscription continues meanwhile; a caller that requested an answer waits for it."""
    store, stream = FullStore(), stream_of(5)
    cursor = await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        store.is_full = True
        cursor.acknowledge(Position(7, 0))
        with trio.move_on_after(100 * SPACE_RETRY_SECONDS):
            await cursor.synced()
        assert cursor.mark_delete == Position(7, 0) > cursor.durable.value
        cursor.acknowledge(Position(7, 1))
        store.is_full = False
        with trio.fail_after(3 * SPACE_RETRY_SECONDS):
            await cursor.synced()
        assert cursor.durable.value == Position(7, 1)
        nursery.cancel_scope.cancel()


async def test_a_cursor_that_closes_on_a_full_disk_says_so(autojump_clock: trio.testing.MockClock) -> None:
    """E13, E17: closing does not wait for free space."""
    store, stream = FullStore(), stream_of(5)
    cursor = await open_cursor(store, stream)
    store.is_full = True
    cursor.acknowledge(Position(7, 0))
    with trio.fail_after(5 * SPACE_RETRY_SECONDS), pytest.RaisesGroup(CursorFailed, CursorFailed):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cursor.run)
            nursery.start_soon(cursor.close)
