"""The types of subscription, and their differences, as a table.

Pure.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from dispatch.policy import Policy, exclusive, shared


class SubscriptionType(IntEnum):
    """How consumers share a subscription. The numbers are those of Pulsar's wire."""

    EXCLUSIVE = 0
    SHARED = 1


class Behaviour(NamedTuple):
    """The differences of a type of subscription."""

    policy: Policy
    consumers_max: int | None
    individual: bool
    """Entries are acknowledged and sent again one by one, so the holder of each is remembered."""
    has_active: bool
    """The first consumer gets everything, and is told so."""


TYPES: Final = {
    SubscriptionType.EXCLUSIVE: Behaviour(exclusive, 1, individual=False, has_active=True),
    SubscriptionType.SHARED: Behaviour(shared, None, individual=True, has_active=False),
}
