"""The bounds of a cursor's record, and what it keeps if not everything fits."""

import orjson
import pytest
import trio
import trio.testing

import storage.cursor
from storage import cursor_record
from storage.errors import CursorCorrupt
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from storage.ranges import Acknowledged
from tests.storage.test_cursor import open_cursor, stream_of


async def test_the_record_is_bounded_and_keeps_what_was_promised(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Above the bound the nearest ranges are stored first, but what was reported as durable always stays."""
    monkeypatch.setattr(cursor_record, "STORED_MAX", 4)
    store, stream = MemoryStore(), stream_of(40)
    cursor = await open_cursor(store, stream)

    async def stored() -> list[Position]:
        again = await open_cursor(store, stream)
        return [position for position in stream.positions if again.is_acknowledged(position)]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        far = [Position(7, 30), Position(7, 32)]
        for position in far:
            cursor.acknowledge(position)
        await cursor.synced()
        near = [Position(7, 2 * number + 1) for number in range(6)]
        for position in reversed(near):
            cursor.acknowledge(position)
        await cursor.synced(near[1])
        assert await stored() == near[:2] + far
        with trio.move_on_after(1) as waited:
            await cursor.synced(near[2])
        assert waited.cancelled_caught, "the third did not fit and nobody says that it did"
        cursor.acknowledge_cumulative(Position(7, 8))
        await cursor.synced()
        assert await stored() == stream.positions[:10] + near[5:] + far
        nursery.cancel_scope.cancel()


async def test_a_stored_batch_stays_stored(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """D12: batch bits share the bound, counted in words, and durable bits of a batch stay stored."""
    monkeypatch.setattr(cursor_record, "STORED_WORDS_MAX", 2)
    store, stream = MemoryStore(), stream_of(9)
    cursor = await open_cursor(store, stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        cursor.acknowledge_batch(Position(7, 6), 0b1)
        await cursor.synced()
        for entry in (1, 2, 3):
            cursor.acknowledge_batch(Position(7, entry), 0b10)
        await cursor.synced(Position(7, 1))
        again = await open_cursor(store, stream)
        bits = [again.remaining_bits(position) for position in stream.positions]
        assert bits == [None, 0b10, None, None, None, None, 0b1, None, None]
        nursery.cancel_scope.cancel()


async def test_the_record_stays_below_what_every_store_takes() -> None:
    """The largest record within the bounds is below 1 MiB, with ids as large as in a busy cluster."""
    ledger = 10**9
    first = [(Position(ledger, 2 * n + 10**6), Position(ledger, 2 * n + 10**6)) for n in range(30_000)]
    last = {Position(ledger, 10**6 - n): 2**63 + 1 for n in range(1, 20_000)}
    acknowledged = Acknowledged(EARLIEST, lambda _position: Position(ledger, 0), first, last)
    encoded = cursor_record.encode(cursor_record.Identity("x"), acknowledged)
    assert len(encoded.value) < 1024 * 1024
    assert len(orjson.loads(encoded.value)["batches"]) == cursor_record.STORED_MAX


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"1", b"{}", b'{"ranges": [], "batches": [], "mark_delete": [0, 0]}', b"\xff"]
)
def test_what_is_no_record_is_told_apart(value: bytes) -> None:
    with pytest.raises(CursorCorrupt):
        cursor_record.decode(value, lambda position: position)


@pytest.mark.parametrize("stored_max", [4, 1000])
def test_steps_add_up_to_the_same_record(monkeypatch: pytest.MonkeyPatch, stored_max: int) -> None:
    """E7: a step looks at a bounded number of ranges and batches."""
    monkeypatch.setattr(cursor_record, "STORED_MAX", stored_max)
    stream = stream_of(60)
    acknowledged = Acknowledged(EARLIEST, stream.next_after)
    for position in stream.positions[1:40:2]:
        acknowledged.acknowledge(position)
    for position in stream.positions[41:60:2]:
        acknowledged.acknowledge_batch(position, 0b101)
    identity = cursor_record.Identity("id", {})
    shown = [stream.positions[33], stream.positions[51]]
    whole = cursor_record.encode(identity, acknowledged, shown)
    for at_once, items in ((1, 30), (10, 3)):
        monkeypatch.setattr(cursor_record, "ITEMS_AT_ONCE", at_once)
        assert cursor_record.encode(identity, acknowledged, shown) == whole
        # Each item is looked at once as it is, twice more where not all of them fit, and once as part of the record.
        pauses = len(list(cursor_record.encode_in_steps(identity, acknowledged, shown)))
        assert pauses >= items * (3 if stored_max == 4 else 1)


async def test_what_is_acknowledged_while_the_record_is_made_goes_out_with_the_next(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """E7, D12: nobody is told that it is durable before."""
    for module in (cursor_record, storage.cursor):
        monkeypatch.setattr(module, "ITEMS_AT_ONCE", 1)
    store, stream = MemoryStore(), stream_of(60)
    cursor = await open_cursor(store, stream)
    told: list[Position] = []

    async def acknowledge_and_look(position: Position) -> None:
        cursor.acknowledge(position)
        await cursor.synced()
        again = await open_cursor(store, stream)
        assert again.is_acknowledged(position)
        told.append(position)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.run)
        async with trio.open_nursery() as consumers:
            for position in reversed(stream.positions[1::2]):
                consumers.start_soon(acknowledge_and_look, position)
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert sorted(told) == stream.positions[1::2]
