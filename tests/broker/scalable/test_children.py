"""Children as records: made once, recognised by later controllers, and opened by their first owner."""

import pytest

from broker.cluster.ownership import claim_key
from broker.errors import TopicDamaged
from broker.names import SegmentDescriptor
from broker.scalable.children import RECORDS_AT_ONCE, make_child, remove_child
from storage.cursor import cursor_key
from storage.managed_ledger_record import record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, Conflict, Record
from storage.position import EARLIEST
from tests.support.rooms import TOPIC, Rooms, payloads, publish

CHILD = TOPIC.segment_name(SegmentDescriptor(0, 0x7FFF, 1))
CONDITION = Check("/condition", ABSENT)


async def records(store: MemoryStore) -> dict[str, Record]:
    return {record.key: record for record in await store.scan("/cursors", "/n")}


async def test_the_next_controller_completes_a_child() -> None:
    """C14, D10: a repeat changes nothing, and adds the cursors that are missing."""
    store = MemoryStore()
    await make_child(CHILD, "topic", ["a"], [CONDITION], store)
    first = await records(store)
    assert set(first) == {record_key(str(CHILD)), cursor_key(str(CHILD), "a")}
    await make_child(CHILD, "topic", ["a", "b c"], [CONDITION], store)
    second = await records(store)
    assert second.items() >= first.items()
    assert set(second) - set(first) == {cursor_key(str(CHILD), "b c")}
    await make_child(CHILD, "topic", ["a", "b c"], [CONDITION], store)
    assert await records(store) == second


async def test_a_record_of_another_topic_is_not_taken_for_the_child() -> None:
    """C14, E2: it may have messages."""
    store = MemoryStore()
    await make_child(CHILD, "earlier topic", [], [CONDITION], store)
    with pytest.raises(TopicDamaged, match="another segment of this name"):
        await make_child(CHILD, "topic", ["a"], [CONDITION], store)


@pytest.mark.parametrize("key", [CONDITION.key, claim_key(str(CHILD))])
async def test_nothing_is_made_or_removed_under_a_lost_condition(key: str) -> None:
    """D4, C14: a deposed controller, a changed layout, or a child that somebody owns."""
    store = MemoryStore()
    await store.put(key, b"")
    with pytest.raises(Conflict):
        await make_child(CHILD, "topic", ["a"], [CONDITION], store)
    assert await records(store) == {}
    await store.delete(key)
    await make_child(CHILD, "topic", ["a"], [CONDITION], store)
    made = await records(store)
    await store.put(key, b"")
    with pytest.raises(Conflict):
        await remove_child(CHILD, CONDITION, store)
    assert await records(store) == made
    await store.delete(key)
    await remove_child(CHILD, CONDITION, store)
    assert await records(store) == {}


async def test_many_subscriptions_take_several_change_sets() -> None:
    """M25: each is small enough for every store."""
    store = MemoryStore()
    names = [f"s{number}" for number in range(3 * RECORDS_AT_ONCE)]
    before = await store.barrier()
    await make_child(CHILD, "topic", names, [CONDITION], store)
    assert await store.barrier() - before == 4
    assert len(await records(store)) == len(names) + 1


async def test_the_first_owner_makes_the_first_ledger(broker: Rooms) -> None:
    """C14, E13: until then the child takes no space; its cursors are at its beginning."""
    await broker.controller.create_topic(TOPIC, 2, {})
    first = TOPIC.segment_name(SegmentDescriptor(0, 0x7FFF, 0))
    await make_child(first, "topic", ["s"], [CONDITION], broker.metadata)
    topic = await broker.topics.get(first)
    await publish(topic, b"a")
    assert await payloads(topic) == [b"a"]
    assert topic.subscriptions["s"].cursor.mark_delete == EARLIEST
    assert topic.subscriptions["s"].backlog_entries == 1
    await broker.topics.unload(first)
    assert await payloads(await broker.topics.get(first)) == [b"a"]
