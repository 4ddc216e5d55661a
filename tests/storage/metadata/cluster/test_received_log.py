"""What a follower makes of a pushed batch if its link ends meanwhile. Whole links are in `test_link_cuts`."""

import trio

from storage.metadata.batches import BEGINNING, Body, encode_batches
from storage.metadata.cluster.messages import Place, PushedBatch
from storage.metadata.cluster.received_log import ReceivedLog
from storage.metadata.memory import MemoryStore
from storage.metadata.record_codec import encode
from storage.metadata.steps import KEYS_AT_ONCE
from storage.metadata.store import Record


async def test_a_batch_is_shown_whole_although_its_link_ends() -> None:
    """C5: otherwise the next link would push it again, and a part of it would be shown twice."""
    store = MemoryStore()
    received = ReceivedLog(store, store._image, Place(0, BEGINNING, 0))
    records = [Record(f"/{number}", b"", 1) for number in range(2 * KEYS_AT_ONCE)]
    body = Body(b"".join(map(encode, records)), len(records))
    data, point = encode_batches(BEGINNING, [body], confirmed=0, offset=0)
    with trio.CancelScope() as ended:
        ended.cancel()
        await received.take_batch(PushedBatch(0, data))
    assert (received.last, received.place) == (point, Place(0, point, 1))
    assert len(store._image.records) == len(records)
    await received.take_batch(PushedBatch(0, data))
    assert received.last == point
