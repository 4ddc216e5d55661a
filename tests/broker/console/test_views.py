"""What each view shows, and that it changes as its broker and its cluster do."""

import json
from urllib.parse import quote

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.console.topics import PAGE
from broker.kafka.groups.group_record import StoredGroup, to_put
from broker.kafka.groups.offsets import TopicPartition, offset_key
from broker.kafka.groups.values import GroupRecord
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from dispatch.subscription_types import SubscriptionType
from storage.metadata.store import ABSENT
from storage.position import EARLIEST
from tests.broker.test_handover import Client
from tests.support.console import served, watching
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, publish
from txn.states import EndAction

PLAIN = TopicName.parse("persistent://public/default/plain")
TOPIC_VIEW = f"view=topic&name={quote(str(TOPIC), safe='')}"


async def test_a_split_is_seen_while_it_happens() -> None:
    """The picture has the parent, its children and who replaced whom, from one frame to the next."""
    async with served("one") as ((broker, address),), watching(address, TOPIC_VIEW) as frames:
        await frames.until(lambda parts: parts["layout"] is None)
        await broker.controller.create_topic(TOPIC, 1, {})
        await frames.until(lambda parts: parts["layout"] is not None)
        assert list(frames.parts["layout"]["segments"]) == ["0"]
        await broker.controller.split(TOPIC, 0)
        await frames.until(lambda parts: len(parts["layout"]["segments"]) == 3 and parts["layout"]["intent"] is None)
        parent, first, second = frames.parts["layout"]["segments"].values()
        assert (parent["active"], parent["childIds"]) == (False, [1, 2])
        assert parent["sealedAtMs"] >= parent["createdAtMs"]
        assert [child["hashRange"] for child in (first, second)] == [
            {"start": 0, "end": 0x7FFF},
            {"start": 0x8000, "end": 0xFFFF},
        ]
        await broker.controller.delete_topic(TOPIC, force=True)
        await frames.until(lambda parts: parts["layout"] is None)


async def test_rates_backlogs_and_holders_come_from_every_owner() -> None:
    """Any broker shows the whole topic: what only an owner counts, it sends."""
    async with served("one", "two") as ((one, _), (two, elsewhere)):
        await one.controller.create_topic(TOPIC, 2, {})
        await one.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        names = [await each.segment(TOPIC, number) for number, each in enumerate((one, two))]
        logs = [await each.topics.get(name) for each, name in zip((one, two), names, strict=True)]
        async with watching(elsewhere, TOPIC_VIEW) as frames:
            await frames.until(lambda parts: len(parts["logs"]) == 2)
            assert frames.parts["owners"] == {str(names[0]): "one", str(names[1]): "two"}
            await publish(logs[0], b"a")
            backlog = await frames.until(
                lambda parts: parts["logs"][str(names[0])]["subscriptions"]["s"]["backlog"] == 1
            )
            assert backlog["logs"][str(names[0])]["messages_in"] == 1
            assert backlog["logs"][str(names[0])]["broker"] == "one"

            consumer, _outlet = recording_consumer()
            logs[0].subscriptions["s"].add_consumer(consumer)
            logs[0].clients.add_consumer(consumer, Client())
            await frames.until(lambda parts: parts["logs"][str(names[0])]["subscriptions"]["s"]["consumers"] != [])
            logs[0].subscriptions["s"].cursor.acknowledge(logs[0].readable.value)
            await frames.until(lambda parts: parts["logs"][str(names[0])]["subscriptions"]["s"]["backlog"] == 0)

        async with watching(elsewhere, "view=subscriptions&search=ORDERS") as frames:
            await frames.until(lambda parts: parts["total"] == 1)
            (shown,) = frames.parts["subscriptions"]
            assert (shown["topic"], shown["name"], shown["backlog"]) == (str(TOPIC), "s", 0)
            assert shown["reading"] == "current"


async def test_a_stuck_subscription_comes_first() -> None:
    """One that nobody reads is named before a larger backlog that is read, and Spark's are shown alone."""
    other = TopicName.parse("topic://public/default/audit")
    async with served("one") as ((broker, address),):
        for topic, subscription in ((TOPIC, "s"), (other, "query")):
            await broker.controller.create_topic(topic, 1, {})
            await broker.controller.subscriptions.add(
                topic, subscription, SubscriptionKind.QUEUE, StartPosition.EARLIEST
            )
        async with watching(address, "view=subscriptions") as frames:
            await frames.until(lambda parts: parts["total"] == 2)
            assert {one["reading"] for one in frames.parts["subscriptions"]} == {"unloaded"}
            logs = [await broker.topics.get(await broker.segment(topic, 0)) for topic in (TOPIC, other)]
            consumer, _outlet = recording_consumer(name="spark-query")
            logs[1].subscriptions["query"].add_consumer(consumer)
            logs[1].clients.add_consumer(consumer, Client())
            for log, count in zip(logs, (1, 3), strict=True):
                for _ in range(count):
                    await publish(log, b"a")
            await frames.until(lambda parts: [one["backlog"] for one in parts["subscriptions"]] == [1, 3])
            assert [one["reading"] for one in frames.parts["subscriptions"]] == ["nobody", "spark"]
            assert frames.parts["subscriptions"][0]["unread"] == [str(logs[0].name)]
            assert frames.parts["stuck"] == 1
        for only, names in (("stuck", ["s"]), ("spark", ["query"])):
            async with watching(address, f"view=subscriptions&only={only}") as frames:
                parts = await frames.next()
                assert [one["name"] for one in parts["subscriptions"]] == names
        # The driver ends.
        logs[1].subscriptions["query"].remove_consumer(consumer)
        logs[1].clients.remove_consumer(consumer)
        async with watching(address, "view=subscriptions&only=spark") as frames:
            await frames.until(lambda parts: [one["reading"] for one in parts["subscriptions"]] == ["away"])
            assert frames.parts["stuck"] == 2


async def test_a_consumer_of_several_segments_is_one_consumer() -> None:
    """v5 clients add the number of each segment to the consumer's name. Another ending is a part of the name."""
    async with served("one") as ((broker, address),):
        await broker.controller.create_topic(TOPIC, 2, {})
        await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        for number in range(2):
            log = await broker.topics.get(await broker.segment(TOPIC, number))
            for name in (f"c-seg-{number}", "other-seg-7"):
                consumer, _outlet = recording_consumer(name=name)
                log.subscriptions["s"].add_consumer(consumer, SubscriptionType.SHARED)
                log.clients.add_consumer(consumer, Client())
        async with watching(address, "view=subscriptions") as frames:
            await frames.until(lambda parts: parts["subscriptions"][0]["consumers"] == ["c", "other-seg-7"])
        async with watching(address, TOPIC_VIEW) as frames:
            logs = (await frames.next())["logs"]
            named = [{one["name"] for one in log["subscriptions"]["s"]["consumers"]} for log in logs.values()]
            assert named == [{"c", "other-seg-7"}] * 2


async def test_an_open_transaction_is_shown_with_its_participants() -> None:
    async with served("one") as ((broker, address),):
        await broker.controller.create_topic(TOPIC, 1, {})
        segment = await broker.topics.get(await broker.segment(TOPIC, 0))
        async with watching(address, "view=transactions") as frames, watching(address, TOPIC_VIEW) as topic:
            await frames.until(lambda parts: parts["total"] == 0)
            txn = await broker.coordinator.new_transaction(0, 1_000)
            await frames.until(lambda parts: parts["total"] == 1)
            await publish(segment, b"a", txn)
            await frames.until(lambda parts: parts["open"][0]["participants_total"] == 1)
            (shown,) = frames.parts["open"]
            first = str(segment.ledger.last_position)
            assert shown["participants"] == [{"kind": "write", "segment": str(segment.name), "from": first}]
            assert shown["deadline_ms"] - shown["created_ms"] == 1_000
            await topic.until(lambda parts: parts["transactions"] == 1)
            counted = topic.parts["logs"][str(segment.name)]
            assert (counted["end"], counted["readable"]) == (1, 0), "the open transaction holds it back"
            await broker.coordinator.end(txn, EndAction.ABORT)
            await frames.until(lambda parts: parts["total"] == 0 and parts["decided"] != [])
            assert frames.parts["decided"][0]["state"] == "ABORTED"
            await topic.until(lambda parts: parts["transactions"] == 0)


async def test_thousands_of_topics_are_searched_by_the_broker() -> None:
    """A frame has one page, however many topics there are."""
    async with served("one") as ((broker, address),):
        await broker.controller.create_topic(TOPIC, 3, {})
        layout = await broker.metadata.get("/topics/public/default/orders")
        assert layout is not None
        for number in range(2_000):
            await broker.metadata.put(f"/topics/public/default/a-{number:04}", layout.value)
        async with watching(address, "view=topics&search=A-1&first=50") as frames:
            parts = await frames.next()
            assert (parts["total"], parts["matched"], len(parts["topics"])) == (2_001, 1_000, PAGE)
            assert parts["topics"][0]["name"] == "topic://public/default/a-1050"
            assert parts["topics"][0]["active"] == 3
            assert len(json.dumps(parts)) < PAGE * 400
        async with watching(address, "view=topics&sort=load") as frames:
            await frames.next()
            segment = quote(str(await broker.segment(TOPIC, 0)), safe="")
            await broker.metadata.put(
                f"/segment-load/{segment}",
                b'{"msgRateIn": 5.0, "bytesRateIn": 1.0, "msgRateOut": 2.0, "bytesRateOut": 1.0, "sinceMs": 1}',
            )
            await frames.until(lambda parts: parts["topics"][0]["name"] == str(TOPIC))
            assert frames.parts["topics"][0]["load"] == {"in": 5.0, "out": 2.0}
            await broker.metadata.delete(f"/segment-load/{segment}")
            await frames.until(lambda parts: parts["topics"][0]["name"] != str(TOPIC))
            await broker.metadata.delete("/topics/public/default/a-0000")
            await frames.until(lambda parts: parts["total"] == 2_000)
            assert frames.parts["topics"][0]["name"] == "topic://public/default/a-0001"


async def test_a_groups_lag_is_counted_to_the_end_that_readers_see() -> None:
    async with served("one") as ((broker, address),):
        await broker.controller.create_topic(TOPIC, 1, {})
        segment = await broker.topics.get(await broker.segment(TOPIC, 0))
        for _ in range(3):
            await publish(segment, b"a")
        group = StoredGroup(GroupRecord(4, "consumer", "range", None, (), {}), 1)
        await broker.metadata.commit([to_put("g", group, ABSENT)])
        async with watching(address, "view=group&name=g") as frames:
            await frames.until(lambda parts: parts["group"] is not None)
            assert frames.parts["group"]["generation"] == 4
            key = offset_key("g", TopicPartition(TOPIC.local, 0))
            await broker.metadata.put(key, b'{"offset": 1, "epoch": -1, "committed_ms": 5}')
            await frames.until(lambda parts: bool(parts["offsets"]) and parts["offsets"][0]["end"] == 3)
            assert frames.parts["offsets"][0]["offset"] == 1
        async with watching(address, "view=groups&search=G") as frames:
            assert [one["name"] for one in (await frames.next())["groups"]] == ["g"]


async def test_a_move_between_brokers_is_shown() -> None:
    name = TopicName.parse("persistent://public/default/a")
    async with served("one", "two") as ((one, address), (two, _elsewhere)):
        await one.topics.get(name)
        async with watching(address, "view=cluster&broker=one&search=default/A") as frames:
            await frames.until(lambda parts: parts["owned"]["names"] == [str(name)])
            await one.topics.unload(name)
            await two.topics.get(name)
            await frames.until(lambda parts: bool(parts["moves"]) and parts["moves"][0]["to"] == "two")
            moves = [(move["from"], move["to"]) for move in frames.parts["moves"] if move["name"] == str(name)]
            assert moves[0][1] == "two"
            assert frames.parts["owned"]["total"] == 0
            assert set(frames.parts["told"]) == {"one", "two"}


async def test_messages_that_nobody_reads_need_attention() -> None:
    """The overview says so while it lasts, on a broker that another one asks, too."""
    async with served("one", "two") as ((broker, _), (_two, elsewhere)), watching(elsewhere, "view=overview") as frames:
        await broker.controller.create_topic(TOPIC, 1, {})
        for name in ("s", "t"):
            await broker.controller.subscriptions.add(TOPIC, name, SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        log = await broker.topics.get(await broker.segment(TOPIC, 0))
        await publish(log, b"a")
        await frames.until(lambda parts: [one["level"] for one in parts["attention"]] == ["warning"])
        (attention,) = frames.parts["attention"]
        assert f"for s of {TOPIC} and 1 other subscription, and nobody" in attention["text"]
        assert (attention["to"], attention["only"]) == ("subscriptions", "stuck")
        log.subscriptions["s"].cursor.acknowledge(log.readable.value)
        consumer, _outlet = recording_consumer()
        log.subscriptions["t"].add_consumer(consumer)
        log.clients.add_consumer(consumer, Client())
        await frames.until(lambda parts: parts["attention"] == [])


async def test_what_is_read_at_another_broker_is_not_unread() -> None:
    """Messages wait at one broker, and the subscription's only consumer is connected to another segment's owner."""
    async with (
        served("one", "two") as ((one, address), (two, elsewhere)),
        watching(address, "view=overview") as here,
        watching(elsewhere, "view=overview") as there,
    ):
        await one.controller.create_topic(TOPIC, 2, {})
        await one.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        waiting = await one.topics.get(await one.segment(TOPIC, 0))
        read = await two.topics.get(await one.segment(TOPIC, 1))
        consumer, _outlet = recording_consumer()
        read.subscriptions["s"].add_consumer(consumer)
        read.clients.add_consumer(consumer, Client())
        await publish(waiting, b"a")
        # Messages for another subscription make a frame that says of both.
        plain = await one.topics.get(PLAIN)
        await plain.subscribe("other", EARLIEST)
        await publish(plain, b"a")
        for frames in (here, there):
            await frames.until(lambda parts: [one["level"] for one in parts["attention"]] == ["warning"])
            (attention,) = frames.parts["attention"]
            assert f"for other of {PLAIN}, and nobody" in attention["text"]
        read.subscriptions["s"].remove_consumer(consumer)
        read.clients.remove_consumer(consumer)
        for frames in (here, there):
            await frames.until(lambda parts: "1 other" in parts["attention"][0]["text"])


async def test_a_silent_brokers_consumers_are_not_known() -> None:
    """Nobody is accused of not reading what a silent broker may have consumers of."""
    async with served("one") as ((broker, address),), watching(address, "view=overview") as frames:
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        await publish(await broker.topics.get(await broker.segment(TOPIC, 0)), b"a")
        await frames.until(lambda parts: [one["level"] for one in parts["attention"]] == ["warning"])
        await broker.metadata.put("/brokers/two", b'{"service_url": "pulsar://x:1", "http_url": "http://127.0.0.1:1"}')
        await frames.until(lambda parts: [one["level"] for one in parts["attention"]] == ["error"])


async def test_a_silent_broker_is_said_to_be_silent() -> None:
    async with served("one") as ((broker, address),), watching(address, "view=overview") as frames:
        await frames.next()
        await broker.metadata.put("/brokers/two", b'{"service_url": "pulsar://x:1", "http_url": "http://127.0.0.1:1"}')
        await frames.until(lambda parts: parts["attention"] != [])
        (attention,) = frames.parts["attention"]
        assert attention["level"] == "error"
        assert "two" in attention["text"]
        await broker.metadata.delete("/brokers/two")
        await frames.until(lambda parts: parts["attention"] == [])


async def test_the_metadata_tree_changes_as_records_do() -> None:
    async with (
        served("one") as ((broker, address),),
        watching(address, "view=metadata&prefix=/topics/&key=/topics/a/x") as frames,
    ):
        parts = await frames.next()
        assert (parts["level"], parts["record"]) == ([], None)
        await broker.metadata.put("/topics/a/x", b"1")
        await broker.metadata.put("/topics/b", b"2")
        await frames.until(lambda parts: len(parts["level"]) == 2)
        assert [(one["name"], one["is_record"]) for one in frames.parts["level"]] == [("a/", False), ("b", True)]
        assert frames.parts["record"]["value"] == 1
        await broker.metadata.delete("/topics/b")
        await frames.until(lambda parts: len(parts["level"]) == 1)
        assert [change["what"] for change in frames.parts["changes"]] == ["deleted", "created", "created"]


async def test_settings_say_which_are_set() -> None:
    async with served("one") as ((_broker, address),), watching(address, "view=settings") as frames:
        rows = {row["name"]: row for row in (await frames.next())["settings"]["rows"]}
        assert rows["broker_id"] == {"name": "broker_id", "value": "one", "default": "broker-1", "is_default": False}
        assert rows["kafka_namespace"]["is_default"]
        assert rows["http_hosts"]["value"] == "none"


@pytest.mark.parametrize("partitions", [None, 2])
async def test_a_regular_topic_shows_its_logs(partitions: int | None) -> None:
    name = TopicName.parse("persistent://public/default/a")
    async with served("one") as ((broker, address),):
        logs = [name] if partitions is None else [name.partition(index) for index in range(partitions)]
        if partitions is not None:
            await broker.partitioned_topics.create(name, partitions, {})
        for log in logs:
            await broker.topics.get(log)
        async with watching(address, f"view=topic&name={name}") as frames:
            await frames.until(lambda parts: set(parts["logs"]) == set(map(str, logs)))
            await frames.until(lambda parts: set(parts["owners"]) == set(map(str, logs)))
            assert (frames.parts["partitions"], frames.parts["exists"]) == (partitions, True)
        async with watching(address, "view=topics") as frames:
            (shown,) = (await frames.next())["topics"]
            assert shown["kind"] == ("regular" if partitions is None else "partitioned")
        await wait_all_tasks_blocked()


async def test_it_is_told_whether_a_regular_topic_exists() -> None:
    """An empty topic is not taken for one that is not there, nor a partition that nobody has used yet."""
    whole, other = TopicName.parse("persistent://public/default/a"), TopicName.parse("persistent://public/default/ab")
    async with served("one") as ((broker, address),):
        await broker.topics.get(other)
        async with (
            watching(address, f"view=topic&name={whole}") as frames,
            watching(address, f"view=topic&name={whole.partition(1)}") as second,
            watching(address, f"view=topic&name={whole.partition(2)}") as third,
        ):
            for each in (frames, second, third):
                assert not (await each.next())["exists"]
            await broker.partitioned_topics.create(whole, 2, {})
            for each in (frames, second):
                await each.until(lambda parts: parts["exists"])
            assert (frames.parts["partitions"], second.parts["partitions"]) == (2, None)
            await broker.partitioned_topics.extend(whole, 3)
            await third.until(lambda parts: parts["exists"])
        async with watching(address, f"view=topic&name={other}") as frames:
            await frames.until(lambda parts: parts["exists"])
            await broker.topics.delete(other)
            await frames.until(lambda parts: not parts["exists"])
        await wait_all_tasks_blocked()
