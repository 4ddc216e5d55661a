"""Regular topics over HTTP: real brokers do what Pulsar's tools ask, and refuse mistakes with a reason."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import orjson
import pytest
from trio.testing import wait_all_tasks_blocked

from broker.addresses import Address
from broker.names import TopicName
from broker.retention_policies import topic_key
from dispatch.subscription import Acknowledgement
from storage.position import EARLIEST, LATEST, Position
from tests.broker.test_administration_anywhere import served
from tests.support.http import request
from tests.support.outlet import recording_consumer
from tests.support.rooms import Rooms, publish

NAMESPACE = "/admin/v2/persistent/public/default"
PATH = f"{NAMESPACE}/plain"
PLAIN = TopicName.parse("persistent://public/default/plain")
SPLIT = TopicName.parse("persistent://public/default/split")
END = {"ledgerId": LATEST.ledger, "entryId": LATEST.entry}
BEGINNING = {"ledgerId": -1, "entryId": -1}


class Served(NamedTuple):
    """One broker, and where it serves HTTP."""

    broker: Rooms
    address: Address

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request that must succeed. Return the JSON of the answer, if any."""
        answer = await self.refused(method, path, body)
        assert answer.status in {200, 204}, (method, path, answer)
        return answer.json if answer.body else None

    async def refused(self, method: str, path: str, body: object = None) -> Any:
        """Send a request and return the answer."""
        content = b"" if body is None else orjson.dumps(body)
        return await request(self.address, method, path, body=content)

    async def messages(self, name: TopicName, payloads: str) -> None:
        """Publish a message for each letter."""
        topic = await self.broker.topics.get(name)
        for letter in payloads:
            await publish(topic, letter.encode())

    async def backlog(self, subscription: str = "s", path: str = PATH) -> int:
        """Return the backlog that the statistics show."""
        counted: int = (await self.ask("GET", f"{path}/stats"))["subscriptions"][subscription]["msgBacklog"]
        return counted


@pytest.fixture
async def one() -> AsyncIterator[Served]:
    async with served("one") as ((broker, address),):
        yield Served(broker, address)


@pytest.fixture
async def subscribed(one: Served) -> Served:
    """A broker with a topic of five messages and a subscription of them all."""
    await one.ask("PUT", PATH)
    await one.ask("PUT", f"{PATH}/subscription/s")
    await one.messages(PLAIN, "abcde")
    return one


async def test_a_topic_is_created_listed_and_deleted(one: Served) -> None:
    await one.ask("PUT", PATH, {})
    assert (await one.refused("PUT", PATH)).status == 409
    assert one.broker.topics.owned == ()
    assert await one.ask("GET", NAMESPACE) == [str(PLAIN)]
    assert await one.ask("GET", "/admin/v2/namespaces/public/default/topics") == [str(PLAIN)]
    assert await one.ask("GET", "/admin/v2/non-persistent/public/default") == []
    assert await one.ask("GET", "/admin/v2/persistent/public/other") == []
    await one.ask("POST", f"{PATH}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5})
    await one.ask("DELETE", PATH)
    assert await one.ask("GET", NAMESPACE) == []
    assert await one.ask("GET", f"{PATH}/retention") is None
    assert (await one.refused("DELETE", PATH)).status == 404


async def test_a_partitioned_topic_is_created_extended_and_deleted(one: Served) -> None:
    path = f"{NAMESPACE}/split"
    assert (await one.refused("PUT", f"{path}/partitions", 0)).status == 501
    await one.ask("PUT", f"{path}/partitions", 2)
    assert (await one.refused("PUT", f"{path}/partitions", 2)).status == 409
    assert (await one.refused("PUT", path)).status == 409
    assert await one.ask("GET", f"{path}/partitions") == {"partitions": 2, "deleted": False}
    assert (await one.refused("POST", f"{path}/partitions", 2)).status == 409
    await one.ask("POST", f"{path}/partitions", 3)
    assert await one.ask("GET", f"{NAMESPACE}/partitioned") == [str(SPLIT)]
    assert await one.ask("GET", NAMESPACE) == [str(SPLIT.partition(index)) for index in range(3)]
    await one.messages(SPLIT.partition(1), "a")
    refused = await one.refused("DELETE", f"{NAMESPACE}/split-partition-1")
    assert (refused.status, refused.reason) == (412, f"{SPLIT.partition(1)} is a partition of {SPLIT}. Delete that.")
    one.broker._nursery.start_soon(one.broker.partition_removal.run)
    await one.ask("DELETE", path)
    assert await one.ask("GET", NAMESPACE) == []


async def test_a_number_of_partitions_may_come_with_properties(one: Served) -> None:
    """Pulsar's client sends a map if properties were given. They have no place here, so they are refused by name."""
    path = f"{NAMESPACE}/split/partitions"
    refused = await one.refused("PUT", path, {"partitions": 2, "properties": {"team": "x"}})
    assert (refused.status, refused.reason) == (501, "Regular topics have no properties here. Leave them out.")
    await one.ask("PUT", path, {"partitions": 2, "deleted": False, "properties": {}})
    assert (await one.ask("GET", path))["partitions"] == 2


@pytest.mark.parametrize("body", [b"", b"x", b"-1", b"1.5", b"[2]", b'"2"', b"true", b'{"partitions": "2"}'])
async def test_a_number_of_partitions_that_is_none_is_refused(one: Served, body: bytes) -> None:
    answer = await request(one.address, "PUT", f"{NAMESPACE}/split/partitions", body=body)
    assert (answer.status, answer.reason) == (400, "The body must be a whole number.")


async def test_a_topic_of_the_other_kind_is_in_the_way(one: Served) -> None:
    await one.broker.controller.create_topic(PLAIN.as_scalable, 1, {})
    assert (await one.refused("PUT", PATH)).status == 409
    assert (await one.refused("PUT", f"{PATH}/partitions", 2)).status == 409
    assert (await one.refused("GET", f"{PATH}/stats")).status == 404


async def test_a_migrated_topic_is_no_regular_one(subscribed: Served) -> None:
    """Its log is a segment now. A deletion under the old name would take it from the scalable topic."""
    await subscribed.broker.controller.migrate(PLAIN.as_scalable, force=True)
    for method, path in [("DELETE", PATH), ("GET", f"{PATH}/stats"), ("POST", f"{PATH}/subscription/s/skip/1")]:
        refused = await subscribed.refused(method, path)
        assert (refused.status, refused.reason) == (
            404,
            f"{PLAIN} was migrated. Ask for {PLAIN.as_scalable} instead.",
        )
    assert await subscribed.ask("GET", NAMESPACE) == []
    assert (await subscribed.broker.administration.statistics(PLAIN.as_scalable)).subscriptions[
        "s"
    ].backlog_entries == 5


async def test_a_topic_in_use_is_deleted_by_force_only(subscribed: Served) -> None:
    topic = await subscribed.broker.topics.get(PLAIN)
    consumer, _ = recording_consumer()

    class Client:
        follows_layout = False

        def topic_closed(self, assigned_url: str | None = None) -> None:
            topic.clients.remove_consumer(consumer)

    topic.subscriptions["s"].add_consumer(consumer)
    topic.clients.add_consumer(consumer, Client())
    refused = await subscribed.refused("DELETE", PATH)
    assert refused.status == 412
    assert "force=true" in refused.reason
    assert (await subscribed.refused("DELETE", f"{PATH}/subscription/s")).status == 412
    await subscribed.ask("DELETE", f"{PATH}?force=true")
    assert await subscribed.ask("GET", NAMESPACE) == []


async def test_statistics_are_those_that_pulsars_tools_read(subscribed: Served) -> None:
    topic = await subscribed.broker.topics.get(PLAIN)
    consumer, _ = recording_consumer("c")
    topic.subscriptions["s"].add_consumer(consumer)
    topic.subscriptions["s"].flow(consumer, 2)
    await wait_all_tasks_blocked()
    shown = await subscribed.ask("GET", f"{PATH}/stats?getPreciseBacklog=true&subscriptionBacklogSize=true")
    assert (shown["msgInCounter"], shown["bytesInCounter"], shown["averageMsgSize"]) == (5, 5, 1.0)
    counted = shown["subscriptions"]["s"]
    assert (counted["type"], counted["msgBacklog"], counted["isDurable"]) == ("Exclusive", 5, True)
    # As in Pulsar: nothing is read yet, so the backlog is as large as what is stored.
    assert counted["backlogSize"] == shown["backlogSize"] == shown["storageSize"] > 5
    assert counted["earliestMsgPublishTimeInBacklog"] == shown["earliestMsgPublishTimeInBacklogs"] == 1_000_000
    assert counted["consumers"] == [
        {"consumerName": "c", "availablePermits": 0, "unackedMessages": 0, "msgOutCounter": 2, "bytesOutCounter": 2}
    ]


async def test_statistics_of_partitions_are_sums_and_each(one: Served) -> None:
    path = f"{NAMESPACE}/split"
    await one.ask("PUT", f"{path}/partitions", 2)
    await one.ask("PUT", f"{path}/subscription/s")
    await one.messages(SPLIT.partition(0), "ab")
    await one.messages(SPLIT.partition(1), "c")
    shown = await one.ask("GET", f"{path}/partitioned-stats")
    assert (shown["metadata"]["partitions"], shown["msgInCounter"]) == (2, 3)
    assert shown["subscriptions"]["s"]["msgBacklog"] == 3
    each = {name: one["subscriptions"]["s"]["msgBacklog"] for name, one in shown["partitions"].items()}
    assert each == {str(SPLIT.partition(0)): 2, str(SPLIT.partition(1)): 1}
    assert (await one.ask("GET", f"{path}/partitioned-stats?perPartition=false"))["partitions"] == {}
    await one.ask("PUT", PATH)
    assert (await one.refused("GET", f"{PATH}/partitioned-stats")).status == 404


@pytest.mark.parametrize(("start", "backlog"), [(None, 0), (END, 0), (BEGINNING, 3), ("second", 2), ("excluded", 1)])
async def test_a_subscription_begins_where_it_is_told(one: Served, start: Any, backlog: int) -> None:
    await one.messages(PLAIN, "ab")
    second = await one.ask("GET", f"{PATH}/lastMessageId")
    await one.messages(PLAIN, "c")
    chosen = {"second": second, "excluded": {**second, "excluded": True}}[start] if isinstance(start, str) else start
    await one.ask("PUT", f"{PATH}/subscription/s?replicated=false", chosen)
    assert await one.backlog() == backlog
    assert (await one.refused("PUT", f"{PATH}/subscription/s")).status == 409
    assert await one.ask("GET", f"{PATH}/subscriptions") == ["s"]
    await one.ask("DELETE", f"{PATH}/subscription/s")
    assert await one.ask("GET", f"{PATH}/subscriptions") == []
    assert (await one.refused("DELETE", f"{PATH}/subscription/s")).status == 404


async def test_a_subscription_passes_messages(subscribed: Served) -> None:
    path = f"{PATH}/subscription/s"
    await subscribed.ask("POST", f"{path}/skip/2")
    assert await subscribed.backlog() == 3
    await subscribed.ask("POST", f"{path}/expireMessages/1")
    assert await subscribed.backlog() == 3
    last = await subscribed.ask("GET", f"{PATH}/lastMessageId")
    await subscribed.ask("POST", f"{path}/expireMessages", {**last, "excluded": True})
    assert await subscribed.backlog() == 1
    await subscribed.ask("POST", f"{path}/skip_all")
    assert await subscribed.backlog() == 0


async def test_a_subscription_goes_to_a_time_or_a_message(subscribed: Served) -> None:
    path = f"{PATH}/subscription/s"
    await subscribed.ask("POST", f"{path}/resetcursor/1000001")
    assert await subscribed.backlog() == 0
    await subscribed.ask("POST", f"{path}/resetcursor/1000000")
    assert await subscribed.backlog() == 5
    last = await subscribed.ask("GET", f"{PATH}/lastMessageId")
    await subscribed.ask("POST", f"{path}/resetcursor", last)
    assert await subscribed.backlog() == 1
    await subscribed.ask("POST", f"{path}/resetcursor", {**last, "isExcluded": True})
    assert await subscribed.backlog() == 0
    await subscribed.ask("POST", f"{path}/resetcursor", BEGINNING)
    assert await subscribed.backlog() == 5


async def test_the_last_message_of_an_empty_topic_is_none(one: Served) -> None:
    await one.ask("PUT", PATH)
    assert await one.ask("GET", f"{PATH}/lastMessageId") == {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    await one.messages(PLAIN, "a")
    last = await one.ask("GET", f"{PATH}/lastMessageId")
    assert last["entryId"] == 0
    assert await one.ask("PUT", f"{PATH}/backlogSize", last) > 0
    assert await one.ask("PUT", f"{PATH}/backlogSize", END) == 0


async def test_all_partitions_are_asked_under_one_name(one: Served) -> None:
    """A partition that nobody has used is made for a new subscription, and passed over otherwise."""
    path = f"{NAMESPACE}/split"
    await one.ask("PUT", f"{path}/partitions", 3)
    assert (await one.refused("POST", f"{path}/subscription/s/skip_all")).status == 404
    await (await one.broker.topics.get(SPLIT.partition(1))).subscribe("s", EARLIEST)
    await one.messages(SPLIT.partition(1), "ab")
    await one.ask("PUT", f"{path}/subscription/s", BEGINNING)
    assert (await one.refused("PUT", f"{path}/subscription/s")).status == 409
    await one.messages(SPLIT.partition(2), "c")
    assert await one.backlog(path=path) == 3
    for call, backlog in [("skip_all", 0), ("resetcursor/0", 3), ("expireMessages/1", 3)]:
        await one.ask("POST", f"{path}/subscription/s/{call}")
        assert await one.backlog(path=path) == backlog
    await one.ask("POST", f"{path}/subscription/s/expireMessages", END)
    assert await one.backlog(path=path) == 0
    for call in ("skip/1", "expireMessages", "resetcursor"):
        refused = await one.refused("POST", f"{path}/subscription/s/{call}", {"ledgerId": 1, "entryId": 0})
        assert refused.status == 405
        assert "split-partition-0" in refused.reason
    assert (await one.refused("GET", f"{path}/lastMessageId")).status == 405
    await one.ask("POST", f"{NAMESPACE}/split-partition-2/subscription/s/resetcursor", BEGINNING)
    assert await one.backlog(path=path) == 1
    await one.ask("POST", f"{path}/all_subscription/expireMessages/5")
    await one.ask("DELETE", f"{path}/subscription/s")
    assert await one.ask("GET", f"{path}/subscriptions") == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "other/stats", None, 404),
        ("GET", "other/subscriptions", None, 404),
        ("PUT", "other/subscription/s", None, 404),
        ("POST", "plain/subscription/other/skip_all", None, 404),
        ("POST", "plain/subscription/s/skip/x", None, 412),
        ("POST", "plain/subscription/s/skip/-1", None, 412),
        ("POST", "plain/subscription/s/expireMessages/1.5", None, 412),
        ("POST", "plain/subscription/s/resetcursor/now", None, 412),
        ("POST", "plain/subscription/s/resetcursor", None, 400),
        ("POST", "plain/subscription/s/resetcursor", {"ledgerId": 1}, 400),
        ("POST", "plain/subscription/s/resetcursor", {"ledgerId": "1", "entryId": 0}, 400),
        ("POST", "plain/subscription/s/resetcursor", {"ledgerId": True, "entryId": 0}, 400),
        ("POST", "plain/subscription/s/resetcursor", {"ledgerId": -2, "entryId": 0}, 400),
        ("POST", "plain/subscription/s/resetcursor", {"ledgerId": 2**63, "entryId": 0}, 400),
        ("POST", "plain/subscription/s/expireMessages", {"ledgerId": 1, "entryId": None}, 400),
        ("PUT", "plain/subscription/t?replicated=true", None, 501),
        ("PUT", "plain/subscription/t", {**BEGINNING, "properties": {"a": "b"}}, 501),
        ("PUT", "plain2", {"a": "b"}, 501),
        ("PUT", "plain2-partition-0", None, 404),
        ("DELETE", "plain/partitions", None, 404),
        ("POST", "plain/partitions", 3, 404),
    ],
)
async def test_a_mistake_changes_nothing(subscribed: Served, method: str, path: str, body: object, status: int) -> None:
    store = subscribed.broker.metadata
    before = await store.scan("/", "\U0010ffff")
    refused = await subscribed.refused(method, f"{NAMESPACE}/{path}", body)
    assert refused.status == status
    assert refused.reason.endswith(".")
    assert await store.scan("/", "\U0010ffff") == before


@pytest.mark.parametrize(("method", "body"), [("DELETE", None), ("POST", 3)])
async def test_a_topic_without_partitions_differs_from_a_missing_one(
    subscribed: Served, method: str, body: object
) -> None:
    """The answer says which of them the topic is."""
    refused = await subscribed.refused(method, f"{NAMESPACE}/plain/partitions", body)
    assert (refused.status, "is not partitioned" in refused.reason) == (404, True)
    refused = await subscribed.refused(method, f"{NAMESPACE}/missing/partitions", body)
    assert (refused.status, "does not exist" in refused.reason) == (404, True)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("job-1", "job-1"),
        ("job%2F1", "job/1"),
        ("job%252F1", "job/1"),
        ("a+b", "a b"),
        ("a%2Bb", "a b"),
        ("a%252Bb", "a+b"),
        ("%25C3%25BC%2525", "ü%"),
    ],
)
async def test_a_subscription_is_named_as_pulsars_tools_write_it(one: Served, written: str, name: str) -> None:
    """They encode it as in a form, and then percent-encode that."""
    await one.ask("PUT", PATH)
    await one.ask("PUT", f"{PATH}/subscription/{written}")
    assert await one.ask("GET", f"{PATH}/subscriptions") == [name]
    await one.ask("POST", f"{PATH}/subscription/{written}/skip_all")
    await one.ask("DELETE", f"{PATH}/subscription/{written}")
    assert (await one.refused("PUT", f"{PATH}/subscription/%25FF")).status == 412


@pytest.mark.parametrize(
    ("written", "local"),
    [("a+b", "a b"), ("a%20b", "a b"), ("a%2Bb", "a+b"), ("%C3%BC%25", "ü%"), ("a%252Bb", "a%2Bb")],
)
async def test_a_topic_is_named_as_pulsars_tools_write_it(one: Served, written: str, local: str) -> None:
    """They encode it as in a form, and curl's users write `%20`. Its policies and schemas are found the same way."""
    path, policy = f"{NAMESPACE}/{written}", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}
    name = TopicName.parse(f"persistent://public/default/{local}")
    await one.ask("PUT", path)
    assert await one.ask("GET", NAMESPACE) == [str(name)]
    await one.ask("POST", f"{path}/retention", policy)
    assert await one.ask("GET", f"{path}/retention") == policy
    assert await one.broker.metadata.get(topic_key(name)) is not None
    schema = {"type": "STRING", "schema": "", "properties": {}}
    await one.ask("POST", f"/admin/v2/schemas/public/default/{written}/schema", schema)
    assert await one.broker.schemas.latest(name) is not None
    await one.ask("PUT", f"{path}/unload")
    await one.ask("DELETE", path)
    assert await one.ask("GET", NAMESPACE) == []


async def test_what_is_inside_are_ledgers_and_cursors(subscribed: Served) -> None:
    first = await subscribed.ask("GET", f"{PATH}/internalStats")
    (ledger,) = first["ledgers"]
    number = ledger["ledgerId"]
    assert (first["numberOfEntries"], ledger["entries"], first["currentLedgerEntries"]) == (5, 5, 5)
    assert first["totalSize"] == ledger["size"] == first["currentLedgerSize"] > 5
    assert (first["lastConfirmedEntry"], first["state"]) == (f"{number}:4", "LedgerOpened")
    topic = await subscribed.broker.topics.get(PLAIN)
    here = topic.subscriptions["s"]
    here.acknowledge([Acknowledgement(Position(number, entry)) for entry in (0, 2, 3)])
    cursor = (await subscribed.ask("GET", f"{PATH}/internalStats"))["cursors"]["s"]
    assert cursor["markDeletePosition"] == f"{number}:0"
    assert cursor["individuallyDeletedMessages"] == f"[({number}:1..{number}:3]]"
    assert (cursor["totalNonContiguousDeletedMessagesRange"], cursor["active"]) == (1, False)
    await subscribed.ask("PUT", f"{PATH}/unload")
    await subscribed.messages(PLAIN, "f")
    again = await subscribed.ask("GET", f"{PATH}/internalStats")
    assert [ledger["entries"] for ledger in again["ledgers"]] == [5, 1]
    consumer, _ = recording_consumer("c")
    here = (await subscribed.broker.topics.get(PLAIN)).subscriptions["s"]
    here.add_consumer(consumer)
    here.flow(consumer, 2)
    await wait_all_tasks_blocked()
    cursor = (await subscribed.ask("GET", f"{PATH}/internalStats"))["cursors"]["s"]
    # It was sent entries 1 and 4.
    assert cursor["readPosition"] == f"{again['ledgers'][1]['ledgerId']}:0"
    assert (cursor["numberOfEntriesSinceFirstNotAckedMessage"], cursor["active"]) == (4, True)
