"""How long messages are kept that every subscription has acknowledged: policies, and what they let go. Pure.

As in Pulsar, a topic's own policy replaces its namespace's, and that one the broker's. What a subscription has not
acknowledged is kept whatever a policy says. Without a policy everything is kept. Whole ledgers go, the oldest first and
never the one that takes entries.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from broker.errors import RetentionInvalid
from storage.ledger_list import LedgerInfo
from storage.position import Position

_MINUTES: Final = "retentionTimeInMinutes"
_MEGABYTES: Final = "retentionSizeInMB"
_MINUTE_MS: Final = 60_000
_MEGABYTE: Final = 1024 * 1024
_NUMBER_MAX: Final = 2**31 - 1


class Retention(NamedTuple):
    """A policy. A ledger goes when it is too old or when the topic is too large."""

    minutes: int
    """How long after a ledger's last message it is kept; -1: for ever."""
    megabytes: int
    """How much is kept, in MiB; -1: everything."""

    def to_json(self) -> dict[str, int]:
        """As Pulsar's administrators write it."""
        return {_MINUTES: self.minutes, _MEGABYTES: self.megabytes}


INFINITE_RETENTION: Final = Retention(-1, -1)


def retention_of(content: Mapping[str, object] | None) -> Retention:
    """The policy that Pulsar's JSON says.

    Raises:
        RetentionInvalid: it says none, or one that cannot be.
    """
    numbers = []
    for name in (_MINUTES, _MEGABYTES):
        number = None if content is None else content.get(name)
        if not isinstance(number, int) or isinstance(number, bool) or not -1 <= number <= _NUMBER_MAX:
            raise RetentionInvalid(f"{name} is a whole number of -1 (no limit) or more.")
        numbers.append(number)
    minutes, megabytes = numbers
    if (minutes == 0) != (megabytes == 0):
        raise RetentionInvalid("A retention of 0 minutes or 0 MB needs both to be 0: nothing acknowledged is kept.")
    return Retention(minutes, megabytes)


class Removable(NamedTuple):
    """What a policy lets go of now."""

    upto: Position | None
    """The last position of the last ledger to remove; None: there is none."""
    next_ms: int | None
    """When time alone lets the next ledger go; None: never."""
    waits_for_acknowledgement: bool
    """Whether the next ledger is kept by a subscription, or by an open transaction, alone."""


def removable(
    closed: Sequence[LedgerInfo], open_bytes: int, done: Position, policy: Retention, now_ms: int
) -> Removable:
    """Which of the closed ledgers may go.

    Args:
        closed: in order.
        open_bytes: the size of the ledger that takes entries.
        done: up to where everything is decided and acknowledged by every subscription.
        policy: the topic's.
        now_ms: by the clock that entries are stamped with.
    """
    upto: Position | None = None
    if policy == INFINITE_RETENTION or not closed:
        return Removable(None, None, False)
    kept_bytes = -1
    for info in closed:
        end = Position(info.id, info.entries - 1)
        if kept_bytes < 0 and end <= done:
            kept_bytes = sum(other.size for other in closed) + open_bytes
        is_old = policy.minutes >= 0 and info.last_timestamp_ms + policy.minutes * _MINUTE_MS <= now_ms
        is_too_much = policy.megabytes >= 0 and kept_bytes - info.size >= policy.megabytes * _MEGABYTE
        if end > done:
            return Removable(upto, None, True)
        if not is_old and not is_too_much:
            due = info.last_timestamp_ms + policy.minutes * _MINUTE_MS if policy.minutes >= 0 else None
            return Removable(upto, due, False)
        kept_bytes -= info.size
        upto = end
    return Removable(upto, None, False)
