"""One process for each broker id and metadata root. test_places.py has the tests on etcd."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.membership import WAITS_PER_TIMEOUT, BrokerRuns, Membership
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op, Session, SessionLost, StoreUnavailable
from tests.support.steered_store import SteeredStore

TIMEOUT = 10.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def member(store: MemoryStore, *, broker_id: str = "one", lock: str = "a", folder: str = "folder") -> Membership:
    return Membership(
        store,
        broker_id=broker_id,
        folder_id=folder,
        lock_name=lock,
        service_url=f"pulsar://{folder}-{lock}:6650",
        http_url=f"http://{folder}-{lock}:8080",
        release="1.2",
    )


async def registered(store: MemoryStore, membership: Membership) -> Session:
    session = await store.open_session(TIMEOUT)
    await membership.register(session, timeout_seconds=TIMEOUT)
    return session


async def test_a_second_process_of_an_id_is_refused_while_the_first_lives(
    store: MemoryStore, autojump_clock: MockClock
) -> None:
    """E4: the error names the first process, which continues undisturbed."""
    await registered(store, member(store, folder="first"))
    before = await store.get("/brokers/one")
    started = trio.current_time()
    with pytest.raises(BrokerRuns, match=r"id one already runs at pulsar://first-a:6650, .* identity first"):
        await registered(store, member(store, folder="second", lock="b"))
    assert trio.current_time() - started == WAITS_PER_TIMEOUT * TIMEOUT
    assert await store.get("/brokers/one") == before


async def test_the_next_process_waits_for_the_end_of_the_session(store: MemoryStore, autojump_clock: MockClock) -> None:
    """E4: the end of the record wakes it, not a timer; one log line says what it waits for."""
    first = await registered(store, member(store))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registered, store, member(store, lock="b"))
        await trio.sleep(TIMEOUT / 2)
        await first.close()
        closed = trio.current_time()
    assert trio.current_time() == closed


async def test_who_holds_the_same_lock_takes_over_at_once(store: MemoryStore, autojump_clock: MockClock) -> None:
    """E4: the kernel gives the lock to nobody else while the registered process lives."""
    await registered(store, member(store))
    started = trio.current_time()
    await registered(store, member(store))
    assert trio.current_time() == started


async def test_several_that_wait_are_let_in_one_at_a_time(store: MemoryStore, autojump_clock: MockClock) -> None:
    """E4: each waiting process takes over when the one before it has ended."""
    first = await registered(store, member(store))
    outcomes: list[str] = []

    async def start(lock: str) -> None:
        try:
            await registered(store, member(store, lock=lock))
            outcomes.append("registered")
        except BrokerRuns:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        for lock in "bcd":
            nursery.start_soon(start, lock)
        await wait_all_tasks_blocked()
        await first.close()
    assert sorted(outcomes) == ["refused", "refused", "registered"]


async def test_a_registration_is_renewed_with_the_next_session(store: MemoryStore) -> None:
    """E4, E14: a registration lasts no longer than the session that it was made with."""
    membership = member(store)
    first = await registered(store, membership)
    check = await membership.register(first, timeout_seconds=TIMEOUT)
    await first.close()
    assert await store.get("/brokers/one") is None
    second = await store.open_session(TIMEOUT)
    renewed = await membership.register(second, timeout_seconds=TIMEOUT)
    assert renewed != check
    await second.close()
    with pytest.raises(SessionLost):
        await member(store).register(second, timeout_seconds=TIMEOUT)


async def test_a_store_that_does_not_answer_is_no_other_broker(autojump_clock: MockClock) -> None:
    """E4, E14: the start fails because of the store, however long the store takes to report it."""
    store = SteeredStore()
    await registered(store, member(store))

    async def hang(_ops: Sequence[Op]) -> None:
        await trio.sleep(10 * TIMEOUT)
        raise StoreUnavailable("it is away")

    session = await store.open_session(TIMEOUT)
    store.before = hang
    for next_one in (member(store), member(store, broker_id="two")):
        with pytest.raises(StoreUnavailable, match="away"):
            await next_one.register(session, timeout_seconds=TIMEOUT)


async def test_a_slow_store_is_waited_for(autojump_clock: MockClock) -> None:
    """E4: the limit is for another process. Nobody knows yet whether there is one."""
    store = SteeredStore()
    answers = store.late["/brokers/one"] = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registered, store, member(store))
        await trio.sleep(2 * WAITS_PER_TIMEOUT * TIMEOUT)
        assert store.commits == 0
        answers.set()
    assert await store.get("/brokers/one") is not None


async def test_a_damaged_registration_counts_as_a_living_process(store: MemoryStore, autojump_clock: MockClock) -> None:
    """E4, E11: the start waits for the end of its session."""
    session = await store.open_session(TIMEOUT)
    await store.put("/brokers/one", b"[]", session=session)
    with pytest.raises(BrokerRuns, match=r"id one already runs\. Stop that broker"):
        await registered(store, member(store))
    await session.close()
    await registered(store, member(store))
