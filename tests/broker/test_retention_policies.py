"""The policies that a broker knows: read in slices, and changed as a whole."""

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import broker.followers
from broker import retention_policies
from broker.names import TopicName
from broker.retention import INFINITE_RETENTION, Retention
from broker.retention_policies import RetentionPolicies, namespace_key, topic_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Delete, Put
from storage.signal import Signal
from tests.support.idle import TaskSteps

PLAIN = TopicName.parse("persistent://public/default/plain")
NAMESPACE = namespace_key("public", "default")
HOUR = Retention(60, -1)


async def test_many_policies_are_read_and_told_in_slices(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """E7: a hundred thousand topics may have one each, and all come at once when a broker starts."""
    monkeypatch.setattr(retention_policies, "RECORDS_AT_ONCE", 2)
    monkeypatch.setattr(broker.followers, "FOLLOWERS_AT_ONCE", 2)
    store = MemoryStore()
    policies = RetentionPolicies(store)
    for number in range(10):
        await policies.store(f"{NAMESPACE}/{number}", HOUR)
    with TaskSteps() as steps:
        await nursery.start(policies.run)
        assert steps.of("RetentionPolicies.run") >= 10 // 2
        signals = [Signal() for _ in range(10)]
        for signal in signals:
            policies.attach(signal)
        await wait_all_tasks_blocked()
        steps.clear()
        await policies.store(topic_key(PLAIN), HOUR)
        for signal in signals:
            await signal.wait()
        assert steps.of("RetentionPolicies.run") >= 10 // 2
    assert policies.of(PLAIN) == HOUR


async def test_policies_that_change_together_take_effect_together(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """E18, E7: a topic that each of the two keeps for ever is never trimmed in between."""
    monkeypatch.setattr(retention_policies, "RECORDS_AT_ONCE", 1)
    store = MemoryStore()
    policies = RetentionPolicies(store, default=HOUR)
    await policies.store(NAMESPACE, INFINITE_RETENTION)
    await nursery.start(policies.run)
    keys = [*(f"{NAMESPACE}/{number}" for number in range(10)), topic_key(PLAIN)]
    value = orjson.dumps(INFINITE_RETENTION.to_json())
    await store.commit([Delete(NAMESPACE), *(Put(key, value) for key in keys)])
    while NAMESPACE in policies._policies:
        await trio.lowlevel.checkpoint()
    for _ in keys:
        assert policies.of(PLAIN) == INFINITE_RETENTION
        await trio.lowlevel.checkpoint()
