"""Which broker should own a topic that has no owner, and which one does the work that belongs to no owner.

Both answers come from a hash of the name and each broker's id. So all brokers that see the same members give the same
answer, without asking each other. Names spread evenly. When a broker comes or goes, only the names move that it gets or
had (rendezvous hashing).

An answer is advice. Only a claim makes an owner (`broker.cluster.ownership`), so two brokers that see other members for
a moment do no harm.
"""

from collections.abc import Collection, Mapping, Set
from hashlib import blake2b
from typing import NamedTuple


class Member(NamedTuple):
    """A broker that is registered, as the others see it."""

    broker: str
    """Its id."""
    service_url: str
    """Where clients reach it by Pulsar's protocol."""
    http_url: str | None = None
    """Where it serves HTTP; None if its registration does not say so."""
    is_draining: bool = False
    """Whether it hands over what it owns and takes nothing new."""


def choose(name: str, members: Mapping[str, Member], *, assigned: str | None = None) -> str | None:
    """Return the id of the broker that should own `name`; None if no member takes topics.

    Args:
        name: the full name of the topic or segment.
        members: the registered brokers, by id.
        assigned: the broker that an assignment names. It counts if it is a member and takes topics.
    """
    able = taking(members)
    return assigned if assigned in able else preferred(name, able)


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
