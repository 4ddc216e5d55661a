"""Assignments: hints that a claim uses up."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.assignments import Assignments, Why, assignment_key
from broker.cluster.ownership import Claims, OwnedElsewhere, claim_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, Conflict, Session, SessionLost

NAME = "segment://public/default/x/0000-ffff-0"
OTHER = "persistent://public/default/a%2F b"


class Broker:
    def __init__(self, store: MemoryStore, broker_id: str, session: Session) -> None:
        self.session = session
        self.claims = Claims(store, session, broker_id=broker_id, service_url=f"pulsar://{broker_id}:1")
        self.assignments = Assignments(store, session, broker_id=broker_id)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def started(store: MemoryStore, broker_id: str, nursery: trio.Nursery) -> Broker:
    broker = Broker(store, broker_id, await store.open_session(10))
    await nursery.start(broker.assignments.run)
    return broker


async def test_a_claim_uses_up_the_assignment(store: MemoryStore, nursery: trio.Nursery) -> None:
    """C21, D4: an owner gives up its topic to another broker, and everybody knows to whom."""
    one, two = await started(store, "one", nursery), await started(store, "two", nursery)
    claim = await one.claims.claim(NAME)
    await one.assignments.assign(NAME, "two", Why.MOVE, condition=claim)
    await one.assignments.assign(OTHER, "one", Why.LEFTOVER, condition=Check(claim_key(OTHER), ABSENT))
    late = await started(store, "three", nursery)
    await wait_all_tasks_blocked()
    for broker in (one, two, late):
        assert broker.assignments.broker_for(NAME) == "two"
        assert broker.assignments.broker_for(OTHER) == "one"
    with pytest.raises(OwnedElsewhere):
        await two.claims.claim(NAME)
    await one.claims.release(claim)
    await two.claims.claim(NAME)
    await wait_all_tasks_blocked()
    for broker in (one, two, late):
        assert broker.assignments.broker_for(NAME) is None
        assert broker.assignments.broker_for(OTHER) == "one"


async def test_whoever_claims_uses_it_up(store: MemoryStore, nursery: trio.Nursery) -> None:
    """C21: also a broker that it does not name, and a new run of the owner, so that no old hint is left."""
    one, two = await started(store, "one", nursery), await started(store, "two", nursery)
    await one.assignments.assign(NAME, "three", Why.SEAL, condition=Check(claim_key(NAME), ABSENT))
    claim = await two.claims.claim(NAME)
    assert await store.get(assignment_key(NAME)) is None
    await one.assignments.assign(NAME, "one", Why.DRAIN, condition=claim)
    again = await started(store, "two", nursery)
    await again.claims.claim(NAME)
    assert await store.get(assignment_key(NAME)) is None


async def test_only_the_owner_assigns_what_is_owned(store: MemoryStore, nursery: trio.Nursery) -> None:
    """D4: a stale owner, or one that believes that nobody owns the topic, is refused. The last of two counts."""
    one, two = await started(store, "one", nursery), await started(store, "two", nursery)
    stale = await one.claims.claim(NAME)
    await one.claims.release(stale)
    claim = await two.claims.claim(NAME)
    for condition in (stale, Check(claim_key(NAME), ABSENT)):
        with pytest.raises(Conflict):
            await one.assignments.assign(NAME, "one", Why.MOVE, condition=condition)
    await two.assignments.assign(NAME, "one", Why.MOVE, condition=claim)
    await two.assignments.assign(NAME, "three", Why.MOVE, condition=claim)
    await wait_all_tasks_blocked()
    assert one.assignments.broker_for(NAME) == "three"


async def test_a_broker_knows_what_it_should_take_now(store: MemoryStore, nursery: trio.Nursery) -> None:
    """E16: not what it has taken, nor what another broker should take by now."""
    one, two = await started(store, "one", nursery), await started(store, "two", nursery)
    for name in (NAME, OTHER):
        await one.assignments.assign(name, "two", Why.MOVE, condition=Check(claim_key(name), ABSENT))
    await wait_all_tasks_blocked()
    assert one.assignments.mine == {}
    assert set(two.assignments.mine) == {NAME, OTHER}
    await two.claims.claim(NAME)
    await wait_all_tasks_blocked()
    assert set(two.assignments.mine) == {OTHER}
    await one.assignments.assign(OTHER, "one", Why.MOVE, condition=Check(claim_key(OTHER), ABSENT))
    await wait_all_tasks_blocked()
    assert two.assignments.mine == {}
    assert set(one.assignments.mine) == {OTHER}


async def test_an_assignment_ends_with_the_broker_that_wrote_it(store: MemoryStore, nursery: trio.Nursery) -> None:
    """C21: so what a dead broker wished is forgotten, and it can wish nothing more."""
    one, two = await started(store, "one", nursery), await started(store, "two", nursery)
    free = Check(claim_key(NAME), ABSENT)
    await one.assignments.assign(NAME, "two", Why.MOVE, condition=free)
    await one.session.close()
    await wait_all_tasks_blocked()
    assert two.assignments.broker_for(NAME) is None
    with pytest.raises(SessionLost):
        await one.assignments.assign(NAME, "two", Why.MOVE, condition=free)


@pytest.mark.parametrize("value", [b"\xff", b"{}", b"[]", b"3", b'{"to": null}'])
async def test_a_damaged_assignment_is_none(store: MemoryStore, nursery: trio.Nursery, value: bytes) -> None:
    """E11: one record that cannot be read ends no broker, and the topic is placed like any other."""
    one = await started(store, "one", nursery)
    await one.assignments.assign(NAME, "two", Why.MOVE, condition=Check(claim_key(NAME), ABSENT))
    await wait_all_tasks_blocked()
    await store.put(assignment_key(NAME), value)
    await wait_all_tasks_blocked()
    assert one.assignments.broker_for(NAME) is None
    await one.claims.claim(NAME)
