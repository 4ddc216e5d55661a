"""Steps on segments that nobody owns, done by records."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import claim_key
from broker.errors import TopicNotFound
from broker.layouts.layout import Layout, create
from broker.layouts.parts import LayoutSubscription, StartPosition, SubscriptionKind
from broker.layouts.record import to_json
from broker.layouts.store import layout_key
from storage.metadata.store import Op, Put
from tests.support.rooms import TOPIC, Rooms, payloads, publish
from tests.support.steered_store import SteeredStore


async def test_no_cursor_is_made_for_a_subscription_that_was_deleted_meanwhile(
    broker: Rooms, store: SteeredStore
) -> None:
    """C14, D16: whoever makes it was stopped, and another broker has deleted the subscription."""
    await broker.controller.create_topic(TOPIC, 1, {})
    made = LayoutSubscription(SubscriptionKind.STREAM, "i", StartPosition.EARLIEST, 0, is_creating=True)
    await broker.layouts.change(TOPIC, lambda layout: layout.add_subscription("s", made))
    gate = trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key.startswith("/cursors/") for op in ops):
            await gate.wait()

    store.before = hold
    segment = await broker.segment(TOPIC, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.segment_work.make_cursor, TOPIC, segment, "s")
        await wait_all_tasks_blocked()
        await broker.controller.subscriptions.delete(TOPIC, "s", force=True)
        gate.set()
    assert await store.scan("/cursors/", "/cursors~") == []


@pytest.mark.parametrize("is_deleting", [False, True])
async def test_no_cursor_is_made_or_awaited_in_a_topic_that_is_being_deleted(
    broker: Rooms, store: SteeredStore, is_deleting: bool
) -> None:
    """C14, D16: the deletion may have passed this segment, and a later topic of the name would get the cursor."""
    await broker.controller.create_topic(TOPIC, 1, {})
    made = LayoutSubscription(
        SubscriptionKind.STREAM, "i", StartPosition.EARLIEST, 0, is_creating=not is_deleting, is_deleting=is_deleting
    )
    await broker.layouts.change(TOPIC, lambda layout: layout.add_subscription("s", made))
    segment = await broker.segment(TOPIC, 0)
    await broker.layouts.change(TOPIC, Layout.begin_deletion)
    work = broker.segment_work
    with pytest.raises(TopicNotFound):
        await (work.remove_cursor if is_deleting else work.make_cursor)(TOPIC, segment, "s")
    assert await store.scan("/cursors/", "/cursors~") == []


async def test_a_late_removal_leaves_a_later_topic_of_the_name_alone(broker: Rooms) -> None:
    """C14, D16: another broker has finished the deletion, and a topic of the name was created and split since."""
    await broker.controller.create_topic(TOPIC, 1, {})
    late = [await broker.segment(TOPIC, 0)]
    await publish(await broker.topics.get(late[0]), b"kept")
    await broker.controller.split(TOPIC, 0)
    late += [await broker.segment(TOPIC, 1), await broker.segment(TOPIC, 2), late[0]]
    creation_id = (await broker.layouts.get(TOPIC)).creation_id
    for segment in late:
        # The first one is loaded.
        await broker.segment_work.remove(TOPIC, "an earlier one", segment)
        with pytest.raises(TopicNotFound):
            await broker.segment_work.remove(TOPIC, creation_id, segment)
        await broker.topics.unload(segment)
    assert await payloads(await broker.topics.get(late[0])) == [b"kept"]


@pytest.mark.parametrize("is_deletion", [False, True])
async def test_nobody_waits_for_the_owner_of_a_later_topics_segment(
    broker: Rooms, store: SteeredStore, mock_clock: MockClock, is_deletion: bool
) -> None:
    """C14, C15, D16: another controller has finished, and a topic of the name was created and loaded since.

    Changes of the later topic here would wait for ever.
    """
    await broker.controller.create_topic(TOPIC, 1, {})
    claim = claim_key(str(await broker.segment(TOPIC, 0)))
    await store.put(claim, b'{"broker": "two"}')

    async def change() -> None:
        if is_deletion:
            await broker.controller.delete_topic(TOPIC, force=True)
        else:
            with pytest.raises(TopicNotFound):
                await broker.controller.split(TOPIC, 0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await wait_all_tasks_blocked()
        await broker.elections.resign(TOPIC)
        later = to_json(create(1, 0, creation_id="later"))
        # This broker hears of all that at once.
        await store.commit([Put(layout_key(TOPIC), later), Put(claim, b'{"broker": "two"}')])
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks
        nursery.cancel_scope.cancel()
    assert len(broker.controller.locks) == 0
    assert (await broker.layouts.get(TOPIC)).creation_id == "later"
