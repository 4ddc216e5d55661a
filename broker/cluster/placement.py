"""Which broker should own a topic that has no owner, and which one does the work that belongs to no owner.

Both answers come from a hash of the name and each broker's id. So all brokers that see the same members give the same
answer, without asking each other. Names spread evenly (rendezvous hashing). The segments of a scalable topic, and the
partitions of a partitioned one, go to the brokers in turn, so even a few of them spread evenly.

| a broker that                                                        | owns a new topic | does other work |
|----------------------------------------------------------------------|------------------|-----------------|
| is named by the topic's assignment, and does not drain               | yes              | -               |
| drains                                                               | no               | if all drain    |
| is busier than the least busy one by more than BUSY_DIFFERENCE_MAX   | no               | in its turn     |
| any other                                                            | in its turn      | in its turn     |

An answer is advice. Only a claim makes an owner (`broker.cluster.ownership`), so two brokers that see other members or
loads for a moment do no harm.
"""

from collections.abc import Collection, Mapping, Set
from hashlib import blake2b
from typing import Final, NamedTuple

from broker.addresses import KafkaNode
from broker.cluster.broker_load import IDLE, BrokerLoad
from broker.names import TopicName

BUSY_DIFFERENCE_MAX: Final = 0.25
"""The difference of load, in parts of one core, that placement ignores. Reports may be a minute old."""


class Member(NamedTuple):
    """A broker that is registered, as the others see it."""

    broker: str
    """Its id."""
    service_url: str
    """Where clients reach it by Pulsar's protocol."""
    http_url: str | None = None
    """Where it serves HTTP; None if its registration does not say so."""
    kafka: KafkaNode | None = None
    """What Kafka's clients know of it; None if it does not serve them."""
    is_draining: bool = False
    """Whether it hands over what it owns and takes nothing new."""


def choose(
    name: TopicName, members: Mapping[str, Member], loads: Mapping[str, BrokerLoad], *, assigned: str | None = None
) -> str | None:
    """Return the id of the broker that should own a topic; None if no member takes topics.

    Args:
        name: the topic or segment.
        members: the registered brokers, by id.
        loads: what brokers have reported. One that has reported nothing is idle.
        assigned: the broker that an assignment names. It counts if it is a member and takes topics.
    """
    able = taking(members)
    if assigned in able:
        return assigned
    if not able:
        return None
    busy = {broker: loads.get(broker, IDLE).busy for broker in able}
    least = min(busy.values())
    whole, number = _place_among(name)
    turns = sorted(
        (broker for broker in able if busy[broker] - least <= BUSY_DIFFERENCE_MAX),
        key=lambda broker: _weight(whole, broker),
        reverse=True,
    )
    return turns[number % len(turns)]


def _place_among(name: TopicName) -> tuple[str, int]:
    """Return the topic that this one is a part of, and which part it is; of a topic that is whole, itself and 0."""
    if name.segment is not None:
        return str(name.scalable_topic), name.segment.segment_id
    return str(name.partitioned_topic), name.partition_index or 0


def taking(members: Mapping[str, Member]) -> Set[str]:
    """Return the ids of the members that do not drain."""
    return {broker for broker, member in members.items() if not member.is_draining}


def worker(key: str, members: Mapping[str, Member]) -> str | None:
    """Return the id of the member that does the work called `key`. If all drain, one of them does."""
    return preferred(key, taking(members) or members)


def preferred(key: str, members: Collection[str]) -> str | None:
    """Return the broker that does the work called `key`, by its hash alone; None if there are no members."""
    return max(members, key=lambda broker: _weight(key, broker), default=None)


def _weight(key: str, broker: str) -> tuple[bytes, str]:
    # A broker's id contains no NUL, so no two pairs hash the same text.
    return blake2b(f"{broker}\0{key}".encode(), digest_size=8).digest(), broker
