"""The chunks of a message go to one consumer of a shared subscription, even if consumers leave."""

from collections.abc import Sequence

import pytest
import trio

from dispatch import chunks, dispatcher
from dispatch.chunks import Chunk, PartialMessages
from dispatch.consumer import Consumer
from storage.position import Position
from tests.dispatch.test_subscription import EXCLUSIVE, SHARED, Rig, running, settled
from tests.support.idle import TaskSteps
from tests.support.outlet import RecordingOutlet
from tests.support.stream import MemoryStream


def add(stream: MemoryStream, story: str, *, aborted: bool = False) -> list[Position]:
    """Append entries: a small letter is a chunk of the message of that name, a capital its last one, a dot no chunk."""
    return [
        stream.append(aborted=aborted, chunk=None if sign == "." else Chunk(ord(sign.lower()), sign.isupper()))
        for sign in story
    ]


def names(stream: MemoryStream, outlet: RecordingOutlet) -> str:
    """Return what the outlet got, in the letters of `add`."""
    story = ""
    for delivery in outlet.deliveries:
        chunk = stream.chunk_of(delivery.entry)
        story += "." if chunk is None else chr(chunk.message).upper() if chunk.is_last else chr(chunk.message)
    return story


def test_a_message_is_begun_until_its_last_chunk() -> None:
    begun: PartialMessages[str] = PartialMessages()
    assert begun.holder(1) is None
    begun.sent(Chunk(1, is_last=False), "one")
    begun.sent(Chunk(2, is_last=False), "two")
    assert (begun.holder(1), begun.holder(2)) == ("one", "two")
    begun.sent(Chunk(1, is_last=True), "one")
    assert (begun.holder(1), begun.holder(2)) == (None, "two")
    begun.sent(Chunk(3, is_last=False), "one")
    begun.left("two")
    assert (begun.holder(2), begun.holder(3), len(begun)) == (None, "one", 1)


def test_begun_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one whose last chunk is oldest is forgotten."""
    monkeypatch.setattr(chunks, "BEGUN_MAX", 3)
    begun: PartialMessages[str] = PartialMessages()
    for message in (1, 2, 3, 1, 4):
        begun.sent(Chunk(message, is_last=False), "one")
    assert len(begun) == 3
    assert [begun.holder(message) for message in (1, 2, 3, 4)] == ["one", None, "one", "one"]


async def test_chunks_of_one_message_come_to_one_consumer() -> None:
    stream = MemoryStream()
    add(stream, "ab.aba.BcA.cC")
    async with running(stream, SHARED) as rig:
        outlets = [rig.join()[1] for _ in range(2)]
        await settled()
        stories = [names(stream, outlet) for outlet in outlets]
        assert [story.replace(".", "") for story in stories] == ["aaacAcC", "bbB"]
        assert all("." in story for story in stories)


async def test_chunks_of_begun_messages_do_not_look_for_their_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: there may be 10,000 consumers, and 512 chunks."""
    compared = 0

    def equals(consumer: Consumer, other: object) -> bool:
        nonlocal compared
        compared += 1
        return consumer is other

    stream = MemoryStream()
    async with running(stream, SHARED) as rig:
        outlets = [rig.join()[1] for _ in range(50)]
        await settled()
        monkeypatch.setattr(Consumer, "__eq__", equals)
        # The last consumer gets the message.
        add(stream, "." * 49 + "a" * 50)
        await settled()
        add(stream, "a" * 50)
        await settled()
        assert names(stream, outlets[-1]) == "a" * 100
        assert compared == 0


async def test_an_exclusive_subscription_does_not_ask() -> None:
    stream = MemoryStream()
    add(stream, "abAB")
    async with running(stream, EXCLUSIVE) as rig:
        _, outlet = rig.join(permits=3)
        await settled()
        assert names(stream, outlet) == "abA"


async def test_chunks_wait_for_permits_and_hold_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they arrive in order, before later entries. With nothing to send the dispatcher sleeps."""
    stream = MemoryStream()
    add(stream, "a")
    async with running(stream, SHARED) as rig:
        slow, slow_outlet = rig.join(permits=1)
        await settled()
        _, outlet = rig.join(permits=100)
        add(stream, "a.a.b.aB")
        await settled()
        assert names(stream, slow_outlet) == "a"
        assert names(stream, outlet) == "..b.B"
        assert rig.subscription.statistics().entries_to_send_again == 3
        with TaskSteps() as steps:
            await settled()
            assert steps.of("Subscription.run") == 0
        rig.subscription.flow(slow, 2)
        await settled()
        assert slow_outlet.positions == [stream.positions[number] for number in (0, 1, 3)]
        add(stream, "A.")
        await settled()
        assert names(stream, outlet) == "..b.B."
        reads = stream.reads
        rig.subscription.flow(slow, 10)
        await settled()
        assert names(stream, slow_outlet) == "aaaaA"
        assert slow_outlet.positions == sorted(slow_outlet.positions)
        assert stream.reads - reads <= 2
        assert all(delivery.redelivery_count == 0 for delivery in slow_outlet.deliveries)
        assert rig.subscription.statistics().entries_to_send_again == 0


async def test_permits_that_come_during_a_read_do_not_reverse_the_order() -> None:
    """The entries read are discarded, because earlier chunks may be sent now."""
    stream = MemoryStream()
    add(stream, "a")
    async with running(stream, SHARED) as rig:
        slow, outlet = rig.join(permits=1)
        await settled()
        rig.join(permits=100)
        add(stream, "aa.")
        await settled()
        stream.hold_reads = trio.Event()
        add(stream, "aA")
        await settled()
        rig.subscription.flow(slow, 100)
        stream.hold_reads.set()
        await settled()
        assert names(stream, outlet) == "aaaaA"
        assert outlet.positions == sorted(outlet.positions)


async def test_kept_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound nothing new is sent until the consumer that the chunks wait for makes room."""
    monkeypatch.setattr(dispatcher, "KEPT_MAX", 3)
    monkeypatch.setattr(dispatcher, "CHUNK_ENTRIES_MAX", 1)
    stream = MemoryStream()
    add(stream, "a")
    async with running(stream, SHARED) as rig:
        slow, slow_outlet = rig.join(permits=1)
        await settled()
        _, outlet = rig.join(permits=100)
        add(stream, ".a.a.a.A.")
        await settled()
        assert names(stream, outlet) == "..."
        rig.subscription.flow(slow, 1)
        await settled()
        assert names(stream, outlet) == "...."
        rig.subscription.flow(slow, 3)
        await settled()
        assert (names(stream, slow_outlet), names(stream, outlet)) == ("aaaaA", ".....")


async def test_when_a_consumer_goes_its_chunks_come_to_one_other() -> None:
    """The other consumer gets all of them, including those that waited for it, and those that follow."""
    stream = MemoryStream()
    add(stream, "a")
    async with running(stream, SHARED) as rig:
        gone, _ = rig.join(permits=2)
        await settled()
        add(stream, "b")
        await settled()
        outlets = [rig.join()[1] for _ in range(3)]
        add(stream, "abab")
        await settled()
        assert not any(outlet.deliveries for outlet in outlets)
        rig.subscription.remove_consumer(gone)
        await settled()
        add(stream, "AB")
        await settled()
        stories = sorted(story for outlet in outlets if (story := names(stream, outlet)))
        assert stories == ["aaaA", "bbbB"]
        assert all(outlet.positions == sorted(outlet.positions) for outlet in outlets)


@pytest.mark.parametrize("how", ["leaves", "gives all back"])
async def test_a_consumer_that_goes_during_a_read_takes_no_order_with_it(how: str) -> None:
    """The last chunk is being read when the first ones are to be sent again. It must follow them."""
    stream = MemoryStream()
    add(stream, "aa")
    async with running(stream, SHARED) as rig:
        first, first_outlet = rig.join()
        await settled()
        outlets = [rig.join()[1] for _ in range(2)]
        stream.hold_reads = trio.Event()
        add(stream, "A")
        await settled()
        if how == "leaves":
            rig.subscription.remove_consumer(first)
        else:
            rig.subscription.redeliver(first)
        stream.hold_reads.set()
        await settled()
        if how == "leaves":
            assert sorted(names(stream, outlet) for outlet in outlets) == ["", "aaA"]
        else:
            assert names(stream, first_outlet) == "aaaaA"


async def test_a_consumer_that_gives_all_back_gets_it_before_what_waited_for_it() -> None:
    stream = MemoryStream()
    add(stream, "aa")
    async with running(stream, SHARED) as rig:
        slow, outlet = rig.join(permits=2)
        await settled()
        _, others = rig.join()
        add(stream, "aA.")
        await settled()
        rig.subscription.redeliver(slow)
        rig.subscription.flow(slow, 3)
        await settled()
        rig.subscription.flow(slow, 1)
        await settled()
        assert (names(stream, outlet), names(stream, others)) == ("aaaaaA", ".")
        assert outlet.positions[2:] == sorted(outlet.positions[2:])


@pytest.mark.parametrize("order", [(0, 1, 2), (0,), (1, 2), (0, 2)])
async def test_chunks_that_are_given_back_go_together(order: Sequence[int]) -> None:
    """They stay together, whatever else the consumers get, and in however many requests they are returned."""
    stream = MemoryStream()
    positions = add(stream, "aaA")
    async with running(stream, SHARED) as rig:
        first, _ = rig.join(permits=3)
        await settled()
        outlets = [rig.join()[1] for _ in range(3)]
        rest = [position for number, position in enumerate(positions) if number not in order]
        rig.subscription.redeliver(first, [positions[number] for number in order])
        add(stream, "....")
        await settled()
        if 2 not in order:
            rig.subscription.redeliver(first, rest)
            await settled()
        stories = [names(stream, outlet).replace(".", "") for outlet in outlets]
        assert sorted(stories)[:2] == ["", ""]
        assert max(stories, key=len) in {"aaA", "aA"}
        counts = {delivery.redelivery_count for outlet in outlets for delivery in outlet.deliveries}
        assert counts == {0, 1}


async def test_chunks_of_an_aborted_transaction_begin_nothing() -> None:
    stream = MemoryStream()
    add(stream, "ab", aborted=True)
    add(stream, "..")
    async with running(stream, SHARED) as rig:
        outlets = [rig.join()[1] for _ in range(2)]
        await settled()
        assert [names(stream, outlet) for outlet in outlets] == [".", "."]
        assert len(rig.subscription._dispatcher._begun) == 0


async def test_acknowledged_chunks_are_not_waited_for() -> None:
    """Any consumer may acknowledge them. They are not sent again, and take no room."""
    stream = MemoryStream()
    add(stream, "a")
    async with running(stream, SHARED) as rig:
        slow, outlet = rig.join(permits=1)
        await settled()
        rig.join()
        positions = add(stream, "aA.")
        await settled()
        rig.acknowledge(*positions[:2])
        assert rig.subscription.statistics().entries_to_send_again == 0
        rig.subscription.flow(slow, 9)
        await settled()
        assert names(stream, outlet) == "a"


async def test_a_seek_forgets_what_is_begun() -> None:
    stream = MemoryStream()
    positions = add(stream, "aa")
    async with running(stream, SHARED) as rig:
        await joined_and_settled(rig)
        await rig.subscription.seek(positions[0].before())
        outlets = [rig.join()[1] for _ in range(2)]
        add(stream, "A")
        await settled()
        assert sorted(names(stream, outlet) for outlet in outlets) == ["", "aaA"]


async def joined_and_settled(rig: Rig) -> None:
    rig.join()
    await settled()
