"""Which subscriptions nobody reads, from what each broker says of its own logs. Pure.

A subscription of a scalable or partitioned topic may be read at another broker than the one at which its messages wait.
So each broker also says which of these are read at it. What a broker has not said is not known, and nobody is accused:
a subscription counts as unread only if it is known that no broker has a consumer of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

LEFT_MAX: Final = 200
"""Most subscriptions that a broker names because messages wait for them at it."""
CONSUMED_MAX: Final = 5_000
"""Most subscriptions that a broker names because they are read at it."""

Name = tuple[str, str]
"""The topic as users know it, and the subscription."""


class Left(NamedTuple):
    """What waits for a subscription."""

    entries: int
    """Readable entries that are not acknowledged. A batch is one."""
    grew: bool
    """Whether messages have come since it lost its last consumer, or since its log was loaded without one."""
    is_spread: bool
    """Whether other brokers may have a part of its topic."""
    away_seconds: float = 0.0
    """How long nobody has been connected. 0 if that is not known."""

    def __add__(self, other: "Left") -> "Left":  # type: ignore[override]
        """Return what waits on two logs together."""
        return Left(
            self.entries + other.entries,
            self.grew or other.grew,
            self.is_spread or other.is_spread,
            min(self.away_seconds, other.away_seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """What one broker says."""

    left: Mapping[Name, Left] = field(default_factory=dict)
    """What waits here, where no consumer is connected here."""
    more: int = 0
    """How many of these it does not name."""
    consumed: Collection[Name] = ()
    """Subscriptions of spread topics that have a consumer here."""
    is_whole: bool = True
    """Whether `consumed` has all of them."""

    def as_json(self) -> dict[str, Any]:
        """Return it for another broker, with no more names than LEFT_MAX and CONSUMED_MAX."""
        left = sorted(self.left.items())
        return {
            "left": [[*name, *one] for name, one in left[:LEFT_MAX]],
            "more": self.more + len(left[LEFT_MAX:]),
            "consumed": [list(name) for name in sorted(self.consumed)[:CONSUMED_MAX]],
            "is_whole": self.is_whole and len(self.consumed) <= CONSUMED_MAX,
        }


UNKNOWN: Final = Unread(is_whole=False)
"""What is known of a broker that says nothing."""


def unread_in(said: object) -> Unread:
    """Return what another broker said in JSON; UNKNOWN from a broker of a release that says it otherwise."""
    try:
        fields: Any = said
        return Unread(
            left={
                (str(topic), str(name)): Left(int(entries), bool(grew), bool(is_spread), float(away_seconds))
                for topic, name, entries, grew, is_spread, away_seconds in fields["left"]
            },
            more=int(fields["more"]),
            consumed=frozenset((str(topic), str(name)) for topic, name in fields["consumed"]),
            is_whole=bool(fields["is_whole"]),
        )
    except (KeyError, TypeError, ValueError):
        return UNKNOWN


def nobody_reads(brokers: Sequence[Unread]) -> dict[Name, Left]:
    """Return the subscriptions for which messages wait and which no broker has a consumer of, in order."""
    consumed = {name for said in brokers for name in said.consumed}
    partly_known = sum(not said.is_whole for said in brokers)
    found: dict[Name, Left] = {}
    for said in brokers:
        # Of its own consumers, a broker knows all.
        others_are_known = partly_known - (not said.is_whole) == 0
        for name, left in said.left.items():
            if name not in consumed and (others_are_known or not left.is_spread):
                found[name] = found[name] + left if name in found else left
    return dict(sorted(found.items()))


def more_than_named(brokers: Iterable[Unread]) -> int:
    """Return how many further subscriptions may be unread, because brokers do not name all."""
    return sum(said.more for said in brokers)
