"""Layout changes that wait for another broker: for one that cannot do its part yet, or that never will."""

import trio
from trio.testing import MockClock

from broker.cluster.ownership import claim_key
from tests.broker.scalable.test_changes_across_brokers import check_whole, spread
from tests.support.rooms import TOPIC
from tests.support.several_rooms import several


async def test_a_claim_that_could_not_be_released_is_released_later(autojump_clock: MockClock) -> None:
    """C14, D10: the store did not answer when an idle segment was unloaded. No change waits for it for ever."""
    async with several("one", "two") as brokers:
        topics = await spread(brokers, "two")
        name = topics[0].name
        store = brokers.store("two")
        await topics[0].close()
        store.fall_silent(claim_key(str(name)))
        await brokers["two"].topics.unload(name)
        store.answer()
        assert await brokers.shared.get(claim_key(str(name))) is not None
        assert brokers["two"].topics.running(name) is None
        with trio.fail_after(60):
            await brokers["one"].controller.split(TOPIC, 0)
        await check_whole(brokers, {"s"}, [b"0"])
