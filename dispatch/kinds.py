"""The kinds of subscription, and how they differ, as a table.

Pure.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from dispatch.policy import Policy, exclusive, shared


class SubscriptionKind(IntEnum):
    """How consumers share a subscription; numbers as on Pulsar's wire."""

    EXCLUSIVE = 0
    SHARED = 1


class Behaviour(NamedTuple):
    """What a kind of subscription does its own way."""

    policy: Policy
    consumers_max: int | None
    individual: bool
    """Entries are acknowledged and sent again one by one, so each is remembered with its holder."""
    has_active: bool
    """The first of the consumers is sent everything, and is told so."""


KINDS: Final = {
    SubscriptionKind.EXCLUSIVE: Behaviour(exclusive, 1, individual=False, has_active=True),
    SubscriptionKind.SHARED: Behaviour(shared, None, individual=True, has_active=False),
}
