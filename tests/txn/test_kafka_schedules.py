"""Kafka transactions in any order of requests, repeats, failures, timeouts and late owners."""

from collections import Counter
from itertools import product
from random import Random
from typing import Final

import hypothesis.strategies as st
from hypothesis import given

from tests.support.kafka_world import World
from txn.kafka_states import COMPLETED, IDLE, KafkaTxnState
from txn.kafka_transaction import EPOCH_LAST, Producer

VERSIONS: Final = [(1, 1), (2, 2), (1, 2)]
STEPS: Final = 1_000

COMMON: Final = {
    *(f"{idle} to {KafkaTxnState.ONGOING}" for idle in IDLE),
    *(f"{idle} to {KafkaTxnState.EMPTY}" for idle in IDLE),
    *(f"{KafkaTxnState.ONGOING} to {decided}" for decided in COMPLETED),
    *(f"{decided} to {completed}" for decided, completed in COMPLETED.items()),
    *(f"{kind} answered" for kind in ("init", "add", "produce", "end")),
    *("WAIT", "COMMIT", "ABORT", "REMOVE"),
    *("ProducerFenced", "ProducerIdMismatch", "TransactionEnding", "OwnershipLost", "TopicNotFound"),
    *("rotated", "timed out", "end repeated", "completed by another"),
}
"""What happens in many schedules."""


def played(seed: int, versions: tuple[int, int], *, epochs_left: int | None = None) -> Counter[str]:
    """Run one schedule and check it. Return what happened in it."""
    producer = None if epochs_left is None else Producer(1, EPOCH_LAST - epochs_left)
    world = World(Random(seed), versions, producer)
    world.run(STEPS)
    world.drain()
    world.check()
    return world.store.happened


@given(st.integers(0, 2**32), st.sampled_from(VERSIONS), st.none() | st.integers(0, 6))
def test_every_schedule_keeps_the_promises(seed: int, versions: tuple[int, int], epochs_left: int | None) -> None:
    """K27, K28, K29, K30, K31, K32, D15: one outcome, told and applied; stale producers change nothing."""
    played(seed, versions, epochs_left=epochs_left)


def test_schedules_meet_what_they_are_for() -> None:
    """K30: every move but the rarest, repeats, failures and refusals happen, so a schedule is a test of them."""
    happened: Counter[str] = Counter()
    for seed, versions in product(range(60), VERSIONS):
        happened += played(seed, versions, epochs_left=3 if seed % 2 else None)
    assert {what for what in COMMON if happened[what] < 3} == set()
