"""What clients did to lists in transactions, and when they knew what: the history that `judge.py` judges. Pure.

A list is a partition. A client appends unique integers to several lists in a transaction, and reads lists meanwhile, as
a consumer of committed records does: from the beginning to the end of that moment. Times come from one clock of the
machine, in nanoseconds, so they can be compared between processes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from tests.support.history import Fate


class Entry(NamedTuple):
    """One element of a list."""

    offset: int
    value: int


class Append(NamedTuple):
    """An integer that was sent to a list."""

    of_list: int
    value: int


class Reading(NamedTuple):
    """All of a list that a consumer of committed records gets."""

    of_list: int
    began_ns: int
    """Before it asked for the end."""
    ended_ns: int
    end: int
    """The end that it was told. It has read to there, so it may have more."""
    entries: tuple[Entry, ...]


@dataclass
class Transaction:
    """One transaction, as its client knows it."""

    name: str
    session: str
    """Of one producer after another with the same transactional id. Each begins when the one before has ended."""
    appends: list[Append] = field(default_factory=list)
    """In the order of sending."""
    acked: dict[int, int] = field(default_factory=dict)
    """The offsets of those values whose storing was answered."""
    readings: list[Reading] = field(default_factory=list)
    fate: Fate = Fate.OPEN
    asked_ns: int | None = None
    """When a commit was asked for."""
    told_ns: int | None = None
    """When the end was answered."""


Log: TypeAlias = Sequence[Entry]
Logs: TypeAlias = Mapping[int, Log]
"""By list."""


@dataclass
class History:
    """All transactions, each session's in order."""

    transactions: list[Transaction] = field(default_factory=list)

    def count(self, fate: Fate) -> int:
        """Count the transactions with this fate."""
        return sum(transaction.fate is fate for transaction in self.transactions)

    @property
    def readings(self) -> list[tuple[Transaction, Reading]]:
        """All readings, with the transactions in which they happened."""
        return [(transaction, reading) for transaction in self.transactions for reading in transaction.readings]


def transactions_in(session: str, events: Iterable[Mapping[str, Any]]) -> list[Transaction]:
    """Return the transactions of a session, from the events that its clients noted before and after each call.

    A client that was killed notes nothing more. So a commit that it asked for may be made or not.
    """
    found: list[Transaction] = []
    for event in events:
        match event["what"]:
            case "began":
                found.append(Transaction(f"{session}.{len(found)}", session))
            case "append":
                found[-1].appends.append(Append(event["list"], event["value"]))
            case "acked":
                found[-1].acked[event["value"]] = event["offset"]
            case "read":
                entries = tuple(Entry(*entry) for entry in event["entries"])
                found[-1].readings.append(
                    Reading(event["list"], event["began_ns"], event["at_ns"], event["end"], entries)
                )
            case "asked":
                if event["commit"]:
                    found[-1].fate, found[-1].asked_ns = Fate.UNKNOWN, event["at_ns"]
            case "told":
                found[-1].fate = Fate.COMMITTED if event["commit"] else Fate.ABORTED
                found[-1].told_ns = event["at_ns"]
            case "failed":
                pass  # The outcome is as unknown as it was.
            case other:
                raise ValueError(f"no client notes {other!r}")
    return found
