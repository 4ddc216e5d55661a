"""Retention policies: how long messages are kept once every subscription has acknowledged them. Pure.

As in Pulsar, a topic's policy replaces its namespace's policy, which replaces the broker's. Messages that a
subscription has not acknowledged are always kept. Without a policy everything is kept. Whole ledgers are removed,
oldest first, but never the open one.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from broker.errors import RetentionInvalid
from storage.ledger_record import LedgerInfo
from storage.position import Position

_MINUTES: Final = "retentionTimeInMinutes"
_MEGABYTES: Final = "retentionSizeInMB"
_MINUTE_MS: Final = 60_000
_MEGABYTE: Final = 1024 * 1024
_NUMBER_MAX: Final = 2**31 - 1


class Retention(NamedTuple):
    """A policy. A ledger is removed when it is too old, or when the topic is too large."""

    minutes: int
    """How long a ledger is kept after its last message; -1: forever."""
    megabytes: int
    """How many MiB are kept; -1: everything."""

    def to_json(self) -> dict[str, int]:
        """Return the policy in Pulsar's JSON."""
        return {_MINUTES: self.minutes, _MEGABYTES: self.megabytes}


INFINITE_RETENTION: Final = Retention(-1, -1)


def retention_of(content: Mapping[str, object] | None) -> Retention:
    """Parse a policy in Pulsar's JSON.

    Raises:
        RetentionInvalid: the content is not a valid policy.
    """
    numbers = []
    for name in (_MINUTES, _MEGABYTES):
        number = None if content is None else content.get(name)
        if not isinstance(number, int) or isinstance(number, bool) or not -1 <= number <= _NUMBER_MAX:
            raise RetentionInvalid(f"The field {name} must be a whole number of at least -1 (no limit).")
        numbers.append(number)
    minutes, megabytes = numbers
    if (minutes == 0) != (megabytes == 0):
        raise RetentionInvalid(
            "If the retention is 0 minutes or 0 MB, both must be 0. Acknowledged messages are then not kept."
        )
    return Retention(minutes, megabytes)


class Removable(NamedTuple):
    """What a policy allows to remove now."""

    upto: Position | None
    """The last position of the last ledger to remove; None if there is none."""
    next_ms: int | None
    """When the passing of time alone allows the next removal; None if it never does."""
    waits_for_acknowledgement: bool
    """Whether only a subscription or an open transaction still holds the next ledger."""


def removable(
    closed: Sequence[LedgerInfo], open_bytes: int, done: Position, policy: Retention, now_ms: int
) -> Removable:
    """Decide which of the closed ledgers may be removed.

    Args:
        closed: the closed ledgers, in order.
        open_bytes: the size of the open ledger.
        done: up to here, all transactions have ended and every subscription has acknowledged everything.
        policy: the topic's policy.
        now_ms: the time, from the clock that stamps entries.
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
