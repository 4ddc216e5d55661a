"""Which topics and segments can be loaded."""

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.cluster.ownership import KEY_PREFIX as OWNERS
from broker.errors import NotSupported, TopicNotFound
from broker.layouts.layout import Layout
from broker.names import TopicName
from storage.metadata.store import starting_with
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms
from tests.support.steered_store import SteeredStore
from txn.errors import RecordUnreadable


async def claims(broker: Rooms) -> list[str]:
    return [record.key for record in await broker.metadata.scan(*starting_with(OWNERS))]


async def test_names_that_are_no_loadable_topic_are_refused(broker: Rooms) -> None:
    """A segment must be in its topic's layout; otherwise nothing is claimed or created."""
    await broker.controller.create_topic(TOPIC, 2, {})
    with pytest.raises(NotSupported):
        await broker.topics.get(TOPIC)
    for name in ("orders/0000-ffff-0", "orders/0000-7fff-7", "nothing/0000-ffff-0"):
        with pytest.raises(TopicNotFound):
            await broker.topics.get(TopicName.parse(f"segment://public/default/{name}"))
    assert await claims(broker) == []
    assert list(broker.topics) == []
    assert broker.opened == []


async def test_a_segment_is_gone_once_its_topics_deletion_is_decided(broker: Rooms) -> None:
    """T29: the mere attempt of a deletion is not enough; then nobody owns what transactions left there."""
    await broker.controller.create_topic(TOPIC, 1, {})
    segment = await broker.segment(TOPIC, 0)
    assert await broker.leftovers.redrive(str(segment))
    await broker.layouts.change(TOPIC, Layout.begin_deletion)
    await wait_all_tasks_blocked()
    assert not await broker.leftovers.redrive(str(segment))


async def test_what_is_not_in_effect_can_be_removed_and_not_loaded(broker: Rooms) -> None:
    """D10, D16: children of an open split, pruned segments, and those of a topic that is being deleted."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.split(TOPIC, 0)
    pruned = await broker.segment(TOPIC, 0)
    await broker.layouts.change(TOPIC, lambda layout: layout.prune(0))
    layout = await broker.layouts.change(TOPIC, lambda layout: layout.begin_split(1))
    assert layout.intent is not None
    child = TOPIC.segment_name(layout.intent.children[0].descriptor)
    # A controller keeps its own segments until it removes them. Any other owner gives them up.
    await broker.elections.resign(TOPIC)
    await wait_all_tasks_blocked()
    for name in (pruned, child):
        with pytest.raises(TopicNotFound):
            await broker.topics.get(name)
        await broker.topics.delete(name)
    active = await broker.segment(TOPIC, 2)
    await broker.layouts.change(TOPIC, Layout.begin_deletion)
    with pytest.raises(TopicNotFound):
        await broker.topics.get(active)
    await broker.topics.delete(active)
    stranger = TopicName.parse(str(active).replace("-2", "-77"))
    with pytest.raises(TopicNotFound):
        await broker.topics.delete(stranger)


@pytest.mark.parametrize("name", ["a name", "persistent://public/default/a", "topic://public/default/a", "segment://a"])
async def test_no_topic_is_loaded_for_an_op_record_that_names_no_segment(name: str) -> None:
    """E11: the sweep that found it reports it, and creates no regular topic."""
    async with rooms(SteeredStore(), SimulatedFiles(seed=1)) as broker:
        with pytest.raises(RecordUnreadable):
            await broker.leftovers.redrive(name)
        assert list(broker.topics) == []
