"""The acts of a bad day, and schedules of them. Pure.

    acts = draw(seed=7, seconds=60, kinds=chosen(Store.ETCD, only=["kill", "cut.store"]))

The same seed draws the same acts. A longer schedule begins as a shorter one. Most acts last: what is killed is away for
a time, and what is cut is mended again. The next act often begins before the one before has ended.

An act names its victim by what that one does, such as `controller`. Who does it is known only when the act begins.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple


class Store(StrEnum):
    """Where the cluster keeps its metadata."""

    EMBEDDED = "embedded"
    ETCD = "etcd"


class Act(NamedTuple):
    """One thing that happens."""

    at: float
    """Seconds since the schedule's begin."""
    kind: str
    victim: str
    """A broker's id or what it does (VICTIMS), or a role in etcd; empty if the act needs none."""
    seconds: float
    """How long it lasts."""
    seed: int
    """For what can be drawn only when it begins, such as the segment to split."""

    def __str__(self) -> str:
        victim = f" {self.victim}" if self.victim else ""
        lasts = f", for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind}{victim}{lasts}"


class Kind(NamedTuple):
    """A kind of acts, as the drawing knows it."""

    name: str
    """Its family and its own name, such as `kill.broker`."""
    weight: float
    seconds: tuple[float, float] = (0.0, 0.0)
    """How long such an act lasts at least and at most."""
    victims: Sequence[str] = ("",)
    stores: Sequence[Store] = tuple(Store)
    """The stores with which it is possible."""

    @property
    def family(self) -> str:
        """The first part of its name."""
        return self.name.partition(".")[0]


BROKERS: Final = ("one", "two", "three")
OWNER: Final = "owner"
"""Of the most segments and regular topics."""
CONTROLLER: Final = "controller"
"""Of the most scalable topics."""
COORDINATOR: Final = "coordinator"
"""Of the most transaction coordinators' shards."""
LEADER: Final = "leader"
"""The member that leads etcd, or the broker that leads the embedded metadata log."""
FOLLOWER: Final = "follower"
"""A member of etcd that does not lead."""

_ROLES: Final = (*BROKERS, OWNER, CONTROLLER, COORDINATOR)
_ETCD: Final = (Store.ETCD,)
_MEMBERS: Final = (LEADER, LEADER, FOLLOWER)

PLACES: Final = ("clients", "peers", "store")
"""The networks: before a broker's clients, between it and other brokers, between it and the metadata store."""
FAULTS: Final = {"cut": (0.5, 8.0), "mute": (0.5, 12.0), "hold": (0.5, 12.0), "delay": (2.0, 10.0), "half": (0.5, 6.0)}
"""Of a network, by name, how long each lasts. `support/proxy.py` says what they are."""

KINDS: Final[tuple[Kind, ...]] = (
    Kind("kill.broker", 10, (0.1, 8), _ROLES),
    Kind("kill.leader", 5, (0.1, 6), (LEADER,), (Store.EMBEDDED,)),
    Kind("kill.etcd", 4, (0.1, 8), _MEMBERS, _ETCD),
    Kind("stop.broker", 8, (0.2, 14), _ROLES),
    Kind("stop.leader", 5, (0.2, 14), (LEADER,), (Store.EMBEDDED,)),
    Kind("stop.etcd", 3, (0.2, 10), _MEMBERS, _ETCD),
    Kind("restart.broker", 4, (0.1, 4), _ROLES),
    Kind("restart.rolling", 1.5),
    Kind("hand.drain", 4, (0.5, 5), BROKERS),
    Kind("hand.move", 8),
    Kind("hand.unload", 4),
    Kind("layout.split", 5),
    Kind("layout.merge", 5),
    *(Kind(f"{fault}.{place}", 1.2, seconds, BROKERS) for fault, seconds in FAULTS.items() for place in PLACES),
)

FIRST_SECONDS_MAX: Final = 2.0
PAUSE_SECONDS: Final = 2.0
"""The mean time between one act's usual end and the next one's begin."""
SHARE_MIN: Final = 0.15
"""How much of an act has passed at least before the next one begins."""


def names() -> list[str]:
    """Return the names of all kinds and families."""
    return [*dict.fromkeys(kind.family for kind in KINDS), *(kind.name for kind in KINDS)]


def chosen(store: Store, only: Sequence[str] = ()) -> list[Kind]:
    """Return the kinds that are possible with this store, or those of them that `only` names, by name or family."""
    return [kind for kind in KINDS if store in kind.stores and (not only or kind.name in only or kind.family in only)]


def draw(seed: int, seconds: float, kinds: Sequence[Kind]) -> list[Act]:
    """Draw a schedule. All of its acts end within `seconds`."""
    random = Random(f"{seed}/acts")
    acts: list[Act] = []
    at = random.uniform(0, FIRST_SECONDS_MAX)
    while True:
        kind = random.choices(kinds, [kind.weight for kind in kinds])[0]
        lasts = _log_uniform(random, *kind.seconds)
        act = Act(at, kind.name, random.choice(kind.victims), lasts, random.randrange(1_000_000))
        at += random.uniform(SHARE_MIN, 1) * lasts + random.expovariate(1 / PAUSE_SECONDS)
        if act.at > seconds:
            return acts
        if act.at + act.seconds <= seconds:
            acts.append(act)


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high))) if high else 0.0
