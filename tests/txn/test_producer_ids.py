"""Ids of Kafka producers: reserved in blocks, never reused."""

import orjson
import pytest
import trio

from storage.metadata.memory import MemoryStore
from txn.errors import ProducerIdsDamaged
from txn.kafka_transaction import PRODUCER_ID_MAX
from txn.producer_ids import IDS_PER_BLOCK, PRODUCER_IDS_KEY, ProducerIds


async def test_ids_are_reserved_in_blocks() -> None:
    """K30: two brokers, and one that starts again, never hand out the same id."""
    metadata = MemoryStore()
    here, there = ProducerIds(metadata), ProducerIds(metadata)
    assert [await here.take() for _ in range(3)] == [1, 2, 3]
    assert await there.take() == IDS_PER_BLOCK + 1
    assert [await here.take() for _ in range(IDS_PER_BLOCK - 2)][-2:] == [IDS_PER_BLOCK, 2 * IDS_PER_BLOCK + 1]
    assert await ProducerIds(metadata).take() == 3 * IDS_PER_BLOCK + 1


async def test_ids_taken_at_once_differ() -> None:
    """K30: within a process and between several."""
    metadata = MemoryStore()
    taken: list[int] = []

    async def take(ids: ProducerIds) -> None:
        taken.extend([await ids.take() for _ in range(3)])

    shared = ProducerIds(metadata)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(take, shared if number % 2 else ProducerIds(metadata))
    assert len(set(taken)) == len(taken) == 30


async def test_fields_of_a_later_release_are_kept() -> None:
    """C22: an older broker reserves a block."""
    metadata = MemoryStore()
    await metadata.put(PRODUCER_IDS_KEY, b'{"next": 8001, "later": [1]}')
    assert await ProducerIds(metadata).take() == 8001
    record = await metadata.get(PRODUCER_IDS_KEY)
    assert record is not None
    assert orjson.loads(record.value) == {"next": 8001 + IDS_PER_BLOCK, "later": [1]}


@pytest.mark.parametrize(
    "value", [b"", b"7", b"{}", b'{"next": "1"}', b'{"next": 0}', b'{"next": %d}' % PRODUCER_ID_MAX]
)
async def test_a_damaged_counter_hands_out_nothing(value: bytes) -> None:
    """E11: any id may be in use. The record stays for people to look at."""
    metadata = MemoryStore()
    await metadata.put(PRODUCER_IDS_KEY, value)
    ids = ProducerIds(metadata)
    with pytest.raises(ProducerIdsDamaged, match=PRODUCER_IDS_KEY):
        await ids.take()
    record = await metadata.get(PRODUCER_IDS_KEY)
    assert record is not None
    assert record.value == value
