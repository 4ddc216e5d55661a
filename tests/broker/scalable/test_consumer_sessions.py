"""Sessions of ordered consumers: they survive a lost connection and a restart of the broker, but no longer."""

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import OwnedElsewhere, claim_key
from broker.errors import NotSupported
from broker.layouts.layout import Layout
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.layouts.registrations import KEY_PREFIX, GroupId, Registrations, registration_key
from broker.scalable import consumer_groups
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op, Put, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.group_members import QuietMember
from tests.support.rooms import TOPIC, Rooms, publish, rooms
from tests.support.steered_store import SteeredStore

GROUP = GroupId(TOPIC, "s")
GRACE = 60


@pytest.fixture
async def broker() -> AsyncIterator[Rooms]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=5), consumer_session_grace_seconds=GRACE) as made:
        yield made


class Member(QuietMember):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[set[int]] = []

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        self.told.append(set(segments))


async def joined(broker: Rooms, name: str, group: GroupId = GROUP) -> Member:
    member = Member(name)
    await broker.groups.join(group, member)
    return member


async def registered(broker: Rooms) -> dict[str, set[int]]:
    """Return the group's records in the store, once everything is written."""
    await wait_all_tasks_blocked()
    shares = (await Registrations(broker.metadata).load(TOPIC)).get(GROUP, {})
    return {name: set(segments) for name, segments in shares.items()}


async def topic_with(broker: Rooms, segments: int) -> None:
    await broker.controller.create_topic(TOPIC, segments, {})
    await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)


async def test_segments_wait_for_a_consumer_whose_connection_is_lost(broker: Rooms, autojump_clock: MockClock) -> None:
    """D11: the consumer gets them back at once, and the others get no news; a moment later they would have got them."""
    await topic_with(broker, 4)
    a, b = await joined(broker, "a"), await joined(broker, "b")
    had, told = a.told[-1], len(b.told)
    for _ in range(3):
        broker.groups.lose(GROUP, a)
        await trio.sleep(GRACE - 1)
        a = await joined(broker, "a")
        assert a.told == [had]
    assert len(b.told) == told
    broker.groups.lose(GROUP, a)
    await trio.sleep(GRACE + 1)
    assert b.told[-1] == {0, 1, 2, 3}
    assert await registered(broker) == {"b": {0, 1, 2, 3}}
    assert (await joined(broker, "a")).told != [set()], "it is one of them again"


async def test_who_is_away_keeps_his_part_through_a_split(broker: Rooms, autojump_clock: MockClock) -> None:
    """D10: the layout may change meanwhile; the returned consumer's assignment follows the new one."""
    await topic_with(broker, 2)
    a, b = await joined(broker, "a"), await joined(broker, "b")
    (mine,), (other,) = a.told[-1], b.told[-1]
    broker.groups.lose(GROUP, a)
    await broker.controller.split(TOPIC, mine)
    await wait_all_tasks_blocked()
    assert b.told[-1] == {other, 2, 3}, "he had none of the new ones yet"
    a = await joined(broker, "a")
    assert a.told[-1] | b.told[-1] == {other, 2, 3}
    assert not a.told[-1] & b.told[-1]
    assert a.told[-1]


async def test_closing_is_leaving_also_while_others_are_away(broker: Rooms, autojump_clock: MockClock) -> None:
    await topic_with(broker, 2)
    a, b = await joined(broker, "a"), await joined(broker, "b")
    broker.groups.lose(GROUP, b)
    broker.groups.lose(GROUP, b)
    broker.groups.leave(GROUP, a)
    broker.groups.lose(GROUP, a)
    assert list(await registered(broker)) == ["b"]
    assert (await joined(broker, "c")).told == [a.told[-1]]
    had, b = b.told[-1], await joined(broker, "b")
    await trio.sleep(10 * GRACE)
    assert b.told == [had], "nobody expires who is here"


async def test_who_joins_takes_nothing_from_who_is_away(broker: Rooms, autojump_clock: MockClock) -> None:
    """D11: otherwise the segments would move twice for one lost connection."""
    await topic_with(broker, 2)
    a = await joined(broker, "a")
    broker.groups.lose(GROUP, a)
    b = await joined(broker, "b")
    assert b.told == [set()]
    await trio.sleep(GRACE - 1)
    assert b.told == [set()]
    a = await joined(broker, "a")
    assert len(a.told[-1]) == len(b.told[-1]) == 1


async def test_the_last_one_away_leaves_nothing_behind(broker: Rooms, autojump_clock: MockClock) -> None:
    await topic_with(broker, 1)
    await publish(await broker.topics.get(await broker.segment(TOPIC, 0)), b"a")
    watches = broker.metadata.statistics().watches
    member = await joined(broker, "a")
    await broker.controller.split(TOPIC, 0)
    broker.groups.lose(GROUP, member)
    await wait_all_tasks_blocked()
    assert broker.metadata.statistics().watches > watches
    await trio.sleep(GRACE + 1)
    await wait_all_tasks_blocked()
    assert broker.metadata.statistics().watches == watches
    assert await registered(broker) == {}
    assert broker.groups._groups == {}


@pytest.mark.parametrize("name", ["a", "", "a/b%2F ü"])
async def test_registrations_outlive_the_broker(name: str, autojump_clock: MockClock) -> None:
    """D10: after kill -9 each consumer gets its old share; one that does not return has left after a grace period."""
    store, files = MemoryStore(), SimulatedFiles(seed=5)
    async with rooms(store, files, consumer_session_grace_seconds=GRACE) as broker:
        await topic_with(broker, 4)
        # In this order, so that the shares are others than a new beginning would give.
        b, a = await joined(broker, "zzz"), await joined(broker, name)
        shares = {member.name: member.told[-1] for member in (a, b)}
        assert shares[name] == {2, 3}
        assert await registered(broker) == shares
    async with rooms(store, files, consumer_session_grace_seconds=GRACE) as broker:
        await broker.groups.recover()
        other = await joined(broker, "other")
        assert other.told == [set()], "two others have theirs still"
        a = await joined(broker, name)
        assert a.told[-1] | other.told[-1] == shares[name]
        await trio.sleep(GRACE + 1)
        assert a.told[-1] | other.told[-1] == {0, 1, 2, 3}
        assert len(a.told[-1]) == len(other.told[-1]) == 2
        assert set(await registered(broker)) == {name, "other"}


async def test_after_a_restart_nobodys_segments_move(autojump_clock: MockClock) -> None:
    """D10: this holds even if the first request is the first news of any consumer."""
    store, files = MemoryStore(), SimulatedFiles(seed=5)
    async with rooms(store, files, consumer_session_grace_seconds=GRACE) as broker:
        await topic_with(broker, 4)
        before = [await joined(broker, name) for name in ("c", "b", "a")]
        await wait_all_tasks_blocked()
    async with rooms(store, files, consumer_session_grace_seconds=GRACE) as broker:
        for member in before:
            assert (await joined(broker, member.name)).told == [member.told[-1]]


async def test_of_a_group_that_nobody_comes_back_to_nothing_is_left(autojump_clock: MockClock) -> None:
    store, files = MemoryStore(), SimulatedFiles(seed=5)
    async with rooms(store, files, consumer_session_grace_seconds=GRACE) as broker:
        await topic_with(broker, 1)
        await joined(broker, "a")
        await wait_all_tasks_blocked()
    async with rooms(store, files, consumer_session_grace_seconds=GRACE) as broker:
        await broker.groups.recover()
        assert await registered(broker) == {"a": {0}}
        await trio.sleep(GRACE + 1)
        assert await registered(broker) == {}
        assert broker.groups._groups == {}


async def test_a_registration_is_durable_before_its_consumer_is_told(broker: Rooms) -> None:
    await topic_with(broker, 1)
    await broker.control()
    real = broker.metadata.commit
    held = trio.Event()
    told: list[str] = []

    async def slow(ops: object) -> object:
        await held.wait()
        return await real(ops)  # type: ignore[arg-type]

    broker.metadata.commit = slow  # type: ignore[method-assign, assignment]
    async with trio.open_nursery() as nursery:

        async def join() -> None:
            await joined(broker, "a")
            told.append("a")

        nursery.start_soon(join)
        await wait_all_tasks_blocked()
        assert told == []
        held.set()
    assert told == ["a"]


async def test_who_gives_up_while_registering_leaves_nothing(broker: Rooms) -> None:
    await topic_with(broker, 1)
    await broker.control()
    real = broker.metadata.commit

    async def lost(ops: object) -> object:
        await real(ops)  # type: ignore[arg-type]
        await trio.sleep_forever()
        raise AssertionError

    broker.metadata.commit = lost  # type: ignore[method-assign, assignment]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(joined, broker, "a")
        await wait_all_tasks_blocked()
        assert await broker.metadata.get(registration_key(GROUP, "a")) is not None
        broker.metadata.commit = real  # type: ignore[method-assign]
        nursery.cancel_scope.cancel()
    assert await registered(broker) == {}
    assert broker.groups._groups == {}


async def test_who_registers_while_the_controller_resigns_gets_nothing_from_it() -> None:
    """C15: the answer of the store comes late, when another broker assigns the segments already."""
    store = SteeredStore()
    async with rooms(store, SimulatedFiles(seed=5)) as broker:
        await topic_with(broker, 1)
        await joined(broker, "a")

        async def resign(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key == registration_key(GROUP, "b") for op in ops):
                await broker.elections.resign(TOPIC)
                await store.put(claim_key(str(TOPIC)), b'{"broker": "two", "service_url": "pulsar://two:6650"}')
                await wait_all_tasks_blocked()

        store.after = resign
        b = Member("b")
        with pytest.raises(OwnedElsewhere):
            await broker.groups.join(GROUP, b)
        await wait_all_tasks_blocked()
        assert b.told == []
        assert broker.groups._groups == {}


async def test_a_store_that_fails_harms_no_assignment(broker: Rooms) -> None:
    """The next change writes what could not be written."""
    await topic_with(broker, 2)
    a = await joined(broker, "a")
    real = broker.metadata.commit

    async def fails(ops: object) -> object:
        raise StoreUnavailable("away")

    await wait_all_tasks_blocked()
    broker.metadata.commit = fails  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailable):
        await joined(broker, "b")
    await wait_all_tasks_blocked()
    broker.metadata.commit = real  # type: ignore[method-assign]
    c = await joined(broker, "c")
    assert a.told[-1] | c.told[-1] == {0, 1}
    assert await registered(broker) == {"a": a.told[-1], "c": c.told[-1]}


async def test_registrations_go_with_their_topic(broker: Rooms, autojump_clock: MockClock) -> None:
    """D16: a topic that is created again under the name is shared among the connected consumers."""
    await topic_with(broker, 2)
    a, b = await joined(broker, "a"), await joined(broker, "b")
    broker.groups.lose(GROUP, b)
    await broker.controller.delete_topic(TOPIC, force=True)
    assert await registered(broker) == {}
    await topic_with(broker, 4)
    await trio.sleep(GRACE + 1)
    assert a.told[-1] == {0, 1, 2, 3}
    assert await registered(broker) == {"a": {0, 1, 2, 3}}


async def test_a_damaged_record_harms_no_others(broker: Rooms) -> None:
    await topic_with(broker, 2)
    for key in (registration_key(GROUP, "x"), f"{KEY_PREFIX}nonsense", registration_key(GROUP, "y") + "/z"):
        await broker.metadata.put(key, b"{}")
    assert (await joined(broker, "a")).told == [{0, 1}]


async def test_a_group_has_a_bound(broker: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_groups, "MEMBERS_MAX", 2)
    await topic_with(broker, 1)
    a = await joined(broker, "a")
    broker.groups.lose(GROUP, a)
    await joined(broker, "b")
    with pytest.raises(NotSupported, match="2 consumers"):
        await joined(broker, "c")
    await joined(broker, "a")
    with pytest.raises(NotSupported, match="bytes"):
        await joined(broker, "n" * 2000, GroupId(TOPIC, "other"))
    assert set(await registered(broker)) == {"a", "b"}
