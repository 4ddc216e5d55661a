"""Regular topics are administered at any broker of a cluster. The owners of their logs are others."""

from broker.names import TopicName
from storage.position import EARLIEST
from tests.broker.http.test_regular import NAMESPACE, PATH, PLAIN, SPLIT, Served
from tests.broker.test_administration_anywhere import served
from tests.support.rooms import Rooms, publish


async def owned(broker: Rooms, name: TopicName, payloads: str) -> None:
    """Let the broker own a topic with these messages and a subscription of them."""
    topic = await broker.topics.get(name)
    await topic.subscribe("s", EARLIEST)
    for letter in payloads:
        await publish(topic, letter.encode())


async def test_the_owner_does_what_another_broker_is_asked() -> None:
    """C14, C21: a subscription is moved wherever the administrator asks, and the topic stays where it is."""
    async with served("one", "two") as ((one, _), (two, address)):
        elsewhere = Served(two, address)
        await owned(one, PLAIN, "abcd")
        assert await elsewhere.backlog() == 4
        await elsewhere.ask("POST", f"{PATH}/subscription/s/skip/3")
        last = await elsewhere.ask("GET", f"{PATH}/lastMessageId")
        assert await elsewhere.backlog() == 1
        await elsewhere.ask("POST", f"{PATH}/subscription/s/resetcursor", last)
        await elsewhere.ask("PUT", f"{PATH}/subscription/t", last)
        assert (await elsewhere.refused("PUT", f"{PATH}/subscription/t")).status == 409
        assert await elsewhere.ask("GET", f"{PATH}/subscriptions") == ["s", "t"]
        await elsewhere.ask("DELETE", f"{PATH}/subscription/t")
        assert (one.topics.owned, two.topics.owned) == ((PLAIN,), ())
        await elsewhere.ask("DELETE", PATH)
        assert await elsewhere.ask("GET", NAMESPACE) == []


async def test_partitions_of_several_brokers_are_asked_under_one_name() -> None:
    """C14, C21: the broker that is asked owns one of them, and asks the other's owner."""
    async with served("one", "two") as ((one, address), (two, _)):
        asked, path = Served(one, address), f"{NAMESPACE}/split"
        await asked.ask("PUT", f"{path}/partitions", 2)
        await owned(one, SPLIT.partition(0), "ab")
        await owned(two, SPLIT.partition(1), "c")
        assert await asked.backlog(path=path) == 3
        inside = await asked.ask("GET", f"{path}/partitioned-internalStats")
        assert inside["metadata"]["partitions"] == 2
        assert {name: part["numberOfEntries"] for name, part in inside["partitions"].items()} == {
            str(SPLIT.partition(0)): 2,
            str(SPLIT.partition(1)): 1,
        }
        await asked.ask("POST", f"{path}/subscription/s/skip_all")
        assert await asked.backlog(path=path) == 0
        await asked.ask("POST", f"{path}/subscription/s/resetcursor/0")
        assert await asked.backlog(path=path) == 3
        await asked.ask("PUT", f"{path}/subscription/t")
        assert (await asked.refused("PUT", f"{path}/subscription/t")).status == 409
        await two.topics.get(SPLIT.partition(1))
        topic = two.topics.running(SPLIT.partition(1))
        assert topic is not None
        assert set(topic.subscriptions) == {"s", "t"}
        await topic.unsubscribe("t")
        await asked.ask("PUT", f"{path}/subscription/a%252Fb+%2525")
        assert set(topic.subscriptions) == {"s", "a/b %"}
        # What one partition lacks is passed over.
        await asked.ask("DELETE", f"{path}/subscription/t")
        assert (await asked.refused("DELETE", f"{path}/subscription/t")).status == 404


async def test_a_drained_broker_asks_the_one_that_takes_a_partition() -> None:
    """C7, C21: it takes nothing new itself."""
    async with served("one", "two") as ((one, address), (two, _)):
        asked, path = Served(one, address), f"{NAMESPACE}/split"
        await asked.ask("PUT", f"{path}/partitions", 2)
        await asked.ask("POST", "/admin/v2/cluster/brokers/one/drain")
        await asked.ask("PUT", f"{path}/subscription/s")
        assert set(two.topics.owned) == {SPLIT.partition(0), SPLIT.partition(1)}
        assert one.topics.owned == ()
