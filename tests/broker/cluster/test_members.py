"""Which brokers run, as one of them knows it."""

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.broker_load import BROKER_LOADS, BrokerLoad
from broker.cluster.members import DRAINING, Members
from broker.cluster.membership import BROKERS, Membership
from broker.cluster.placement import Member
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Session

ONE = Member("one", "pulsar://one:6650", "http://one:8080")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def registered(store: MemoryStore, broker: str, *, host: str | None = None) -> Session:
    membership = Membership(
        store,
        broker_id=broker,
        folder_id="folder",
        lock_name=broker,
        service_url=f"pulsar://{host or broker}:6650",
        http_url=f"http://{host or broker}:8080",
        release="1.2",
    )
    session = await store.open_session(10)
    await membership.register(session, timeout_seconds=10)
    return session


def member(broker: str, *, is_draining: bool = False) -> Member:
    return Member(broker, f"pulsar://{broker}:6650", f"http://{broker}:8080", is_draining=is_draining)


async def test_members_come_and_go_with_their_sessions(store: MemoryStore, nursery: trio.Nursery) -> None:
    """C21: whoever is there at the start is known when `run` has started; this broker always counts."""
    two = await registered(store, "two")
    members = Members(store, ONE)
    assert members.live == {"one": ONE}
    await nursery.start(members.run)
    assert members.live == {"one": ONE, "two": member("two")}
    await registered(store, "three")
    await two.close()
    await wait_all_tasks_blocked()
    assert members.live == {"one": ONE, "three": member("three")}


async def test_a_broker_started_again_has_its_new_addresses(store: MemoryStore, nursery: trio.Nursery) -> None:
    """C21: by the same lock it replaces the registration of its earlier run, whose session has not ended."""
    earlier = await registered(store, "two", host="before")
    members = Members(store, ONE)
    await nursery.start(members.run)
    assert members.live["two"].service_url == "pulsar://before:6650"
    await registered(store, "two")
    await wait_all_tasks_blocked()
    assert members.live["two"] == member("two")
    await earlier.close()
    await wait_all_tasks_blocked()
    assert members.live["two"] == member("two"), "the record belongs to the later session"


async def test_who_drains(store: MemoryStore, nursery: trio.Nursery) -> None:
    """C21: known at the start and later, in whatever order record and registration come."""
    await registered(store, "two")
    await store.put(DRAINING + "two", b"{}")
    members = Members(store, ONE)
    await nursery.start(members.run)
    assert members.live["two"] == member("two", is_draining=True)
    await store.put(DRAINING + "one", b"{}")
    await store.put(DRAINING + "three", b"{}")
    await wait_all_tasks_blocked()
    assert members.live["one"].is_draining
    assert "three" not in members.live
    await registered(store, "three")
    await store.delete(DRAINING + "two")
    await wait_all_tasks_blocked()
    assert [name for name, each in members.live.items() if each.is_draining] == ["three", "one"]


@pytest.mark.parametrize("value", [b"\xff", b"{}", b"[]", b'"text"', b'{"service_url": 3}', b'{"http_url": "x"}'])
async def test_a_damaged_registration_is_no_member(store: MemoryStore, nursery: trio.Nursery, value: bytes) -> None:
    """E11, C22: a record that cannot be read ends no broker and gets no clients. Unknown fields do no harm."""
    members = Members(store, ONE)
    await nursery.start(members.run)
    await registered(store, "two")
    await store.put(BROKERS + "two", value)
    await wait_all_tasks_blocked()
    assert members.live == {"one": ONE}
    await store.put(BROKERS + "two", orjson.dumps({"service_url": "pulsar://two:6650", "later": [1]}))
    await wait_all_tasks_blocked()
    assert members.live["two"] == Member("two", "pulsar://two:6650")


async def test_the_loads_of_brokers_are_known_and_wake_nobody(store: MemoryStore, nursery: trio.Nursery) -> None:
    """C21: they change often, so only who asks for them learns of them. They go with their sessions."""
    two = await registered(store, "two")
    load = BrokerLoad(0.5, 1, 2, 3)
    await store.put(BROKER_LOADS + "two", load.encode(), session=two)
    members = Members(store, ONE)
    await nursery.start(members.run)
    told: list[None] = []
    members.attach(lambda: told.append(None))
    assert members.loads == {"two": load}
    await store.put(BROKER_LOADS + "two", load._replace(busy=0.9).encode(), session=two)
    await store.put(BROKER_LOADS + "two", b"damaged", session=two)
    await wait_all_tasks_blocked()
    assert (members.loads["two"].busy, told) == (0.9, [])
    await two.close()
    await wait_all_tasks_blocked()
    assert members.loads == {}
