"""Claims of topics: one owner at a time, and a condition for each of its writes."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.ownership import KEY_PREFIX, BrokerDrains, Claims, HasEnded, OwnedElsewhere, claim_key, not_known
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, Conflict, Op, Put, Session, StoreUnavailable
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore

NAME = "segment://public/default/x/0000-ffff-0"


async def claims_of(store: MemoryStore, broker_id: str, has_ended: HasEnded = not_known) -> Claims:
    session = await store.open_session(10)
    return Claims(store, session, broker_id=broker_id, service_url="pulsar://127.0.0.1:1", has_ended=has_ended)


async def test_one_owner_at_a_time() -> None:
    """D4: the claim is a condition that only the owner's writes meet."""
    store = MemoryStore()
    first, second = await claims_of(store, "broker-1"), await claims_of(store, "broker-2")
    claim = await first.claim(NAME)
    assert isinstance(claim, Check)
    with pytest.raises(OwnedElsewhere, match="broker-1"):
        await second.claim(NAME)
    with pytest.raises(OwnedElsewhere, match="broker-1"):
        await first.claim(NAME)
    await store.commit([Put("/x", b""), claim])
    await first.release(claim)
    later = await second.claim(NAME)
    with pytest.raises(Conflict):
        await store.commit([Put("/x", b"stale"), claim])
    await first.release(claim)
    await store.commit([Put("/x", b"new"), later])


async def test_a_drain_that_begins_during_a_claim_wins() -> None:
    """C21: it hands over what is there. A claim that came behind that stayed until the broker's end."""
    store = SteeredStore()
    claims = await claims_of(store, "broker-1")

    async def drain(_ops: Sequence[Op]) -> None:
        store.after = None
        claims.refuses_new = True

    store.after = drain
    with pytest.raises(BrokerDrains, match="Look it up again"):
        await claims.claim(NAME)
    assert await store.get(claim_key(NAME)) is None
    claims.refuses_new = False
    await claims.claim(NAME)


async def test_a_claim_of_an_ended_session_needs_no_release() -> None:
    """E14: the store may not answer for a long time, and there is nothing to release."""
    store = SteeredStore()
    session = await store.open_session(10)
    claims = Claims(store, session, broker_id="broker-1", service_url="pulsar://127.0.0.1:1")
    claim = await claims.claim(NAME)
    await session.close()
    store.fail_at(1)
    await claims.release(claim)
    assert claims.counts()["segments"] == 0


async def test_the_end_of_the_session_releases_every_claim() -> None:
    """D4: this also holds for the same broker after a restart, whose claims are new ones."""
    store = MemoryStore()
    session = await store.open_session(10)
    first = Claims(store, session, broker_id="broker-1", service_url="pulsar://127.0.0.1:1")
    claim = await first.claim(NAME)
    await session.close()
    again = await claims_of(store, "broker-1")
    renewed = await again.claim(NAME)
    assert renewed.expected > claim.expected
    await first.release(claim)
    assert await store.get(renewed.key) is not None


async def test_a_broker_started_again_takes_over_what_its_earlier_run_held() -> None:
    """D4: the earlier run's session is still alive, but its late writes are refused, and nobody else gets the topic."""
    store = MemoryStore()
    earlier, other = await claims_of(store, "broker-1"), await claims_of(store, "broker-2")
    stale = await earlier.claim(NAME)
    again = await claims_of(store, "broker-1")
    claim = await again.claim(NAME)
    assert claim.expected > stale.expected
    with pytest.raises(Conflict):
        await store.commit([Put("/x", b"stale"), stale])
    await earlier.release(stale)
    await store.commit([Put("/x", b""), claim])
    with pytest.raises(OwnedElsewhere, match="broker-1"):
        await other.claim(NAME)
    with pytest.raises(OwnedElsewhere, match="broker-1"):
        await again.claim(NAME)


class Killed:
    """A broker with a claim, whose process was killed. Whoever asks ends its session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.asked: list[str] = []

    async def has_ended(self, broker_id: str) -> bool:
        self.asked.append(broker_id)
        await self.session.close()
        return True


async def killed(store: MemoryStore) -> Killed:
    session = await store.open_session(10)
    await Claims(store, session, broker_id="broker-1", service_url="pulsar://127.0.0.1:1").claim(NAME)
    return Killed(session)


async def test_a_claim_of_a_killed_broker_is_free() -> None:
    """C21: nobody waits for its session, whatever the topic was claimed for."""
    store = MemoryStore()
    dead = await killed(store)
    second = await claims_of(store, "broker-2", dead.has_ended)
    claim = await second.claim(NAME)
    await store.commit([Put("/x", b""), claim])
    assert dead.asked == ["broker-1"]


async def test_whoever_waits_for_a_killed_broker_goes_on() -> None:
    """C21: also a change that waits for the owner of a segment."""
    store = MemoryStore()
    dead = await killed(store)
    second = await claims_of(store, "broker-2", dead.has_ended)
    await second.wait_not_elsewhere(NAME)
    assert dead.asked == ["broker-1"]


async def test_an_owner_is_asked_about_once_for_all_that_happened_meanwhile() -> None:
    """C16, C21: each question reads the store and tries a lock, and a claim may change often meanwhile."""
    store = MemoryStore()
    await (await claims_of(store, "broker-1")).claim(NAME)
    asked = 0
    has_asked, answer = trio.Event(), trio.Event()

    async def slowly(_broker_id: str) -> bool:
        nonlocal asked
        asked += 1
        has_asked.set()
        await answer.wait()
        return False

    second = await claims_of(store, "broker-2", slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.wait_not_elsewhere, NAME)
        await has_asked.wait()
        for _ in range(20):
            # Another run of the owner takes the claim over.
            await (await claims_of(store, "broker-1")).claim(NAME)
        await wait_all_tasks_blocked()
        assert asked == 1
        answer.set()
        await wait_all_tasks_blocked()
        assert asked == 2
        nursery.cancel_scope.cancel()


async def test_a_wait_outlives_an_outage_of_the_store() -> None:
    """C5, C21: whether the owner has ended cannot be asked then. Its claim ends later, and the wait with it."""
    store = MemoryStore()
    first = await claims_of(store, "broker-1")
    claim = await first.claim(NAME)
    asked = trio.Event()

    async def unanswered(_broker_id: str) -> bool:
        asked.set()
        raise StoreUnavailable("no answer")

    second = await claims_of(store, "broker-2", unanswered)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.wait_not_elsewhere, NAME)
        await asked.wait()
        await wait_all_tasks_blocked()
        assert nursery.child_tasks, "it waits"
        await first.release(claim)


async def test_a_broker_that_took_the_killed_ones_place_keeps_the_claim() -> None:
    """C21, D4: the claim that counts is the one of now."""
    store = MemoryStore()
    dead, third = await killed(store), await claims_of(store, "broker-3")

    async def third_is_faster(broker_id: str) -> bool:
        await dead.has_ended(broker_id)
        await third.claim(NAME)
        return True

    second = await claims_of(store, "broker-2", third_is_faster)
    with pytest.raises(OwnedElsewhere, match="broker-3"):
        await second.claim(NAME)
    assert dead.asked == ["broker-1"]


async def test_names_do_not_meet() -> None:
    store = MemoryStore()
    claims = await claims_of(store, "broker-1")
    keys = {(await claims.claim(name)).key for name in (NAME, NAME.replace("/", "%2F"), NAME + "/", "x", "X")}
    assert len(keys) == 5
    assert all(key.startswith(KEY_PREFIX) for key in keys)


@every_schedule(examples_max=30)
async def test_of_two_that_claim_at_once_one_wins() -> None:
    """D4: the other broker learns who won."""
    store = MemoryStore()
    won: list[str] = []
    lost: list[str] = []

    async def claim(broker_id: str) -> None:
        try:
            await (await claims_of(store, broker_id)).claim(NAME)
            won.append(broker_id)
        except OwnedElsewhere as elsewhere:
            lost.append(str(elsewhere))

    async with trio.open_nursery() as nursery:
        for broker_id in ("one", "two"):
            nursery.start_soon(claim, broker_id)
    assert len(won) == len(lost) == 1
    assert won[0] in lost[0]


DAMAGED = [b"[]", b"{", b'{"broker": "broker-2"}', b"7"]


@pytest.mark.parametrize("value", DAMAGED)
async def test_a_damaged_claim_is_somebody_elses(value: bytes) -> None:
    """E11: nobody can tell who owns the topic, so it is refused for now, and can be claimed when the record is gone."""
    store = MemoryStore()
    claims = await claims_of(store, "broker-1")
    await store.put(claim_key(NAME), value)
    with pytest.raises(OwnedElsewhere, match="damaged"):
        await claims.claim(NAME)
    await store.delete(claim_key(NAME))
    await claims.claim(NAME)


@pytest.mark.parametrize("value", DAMAGED)
async def test_a_damaged_claim_is_waited_for(value: bytes) -> None:
    """E11: whoever waits for the topic waits until the damaged claim is gone."""
    store = MemoryStore()
    claims = await claims_of(store, "broker-1")
    await store.put(claim_key(NAME), value)
    is_free = trio.Event()

    async def wait() -> None:
        await claims.wait_not_elsewhere(NAME)
        is_free.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not is_free.is_set()
        await store.delete(claim_key(NAME))
        await is_free.wait()
