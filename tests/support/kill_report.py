"""The report of a kill loop: what clients did, how the broker was killed, and what was wrong. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.support.copies import Copies
from tests.support.history import Fate, History

STREAM: Final = "stream-copies"
QUEUE: Final = "queue-copies"


@dataclass
class Report:
    """The result of a kill loop."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    """By where they hit: "start-up", "disk write", "outside"."""
    history: History = field(default_factory=History)
    copies: dict[str, Copies] = field(default_factory=lambda: {STREAM: Copies(), QUEUE: Copies()})
    """What the pipelines did, by subscription."""
    unanswered: int = 0
    """Commits that were unanswered at a kill."""
    splits: int = 0
    merges: int = 0
    read: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def kill_count(self) -> int:
        """The number of all kills."""
        return sum(self.kills.values())

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {where}" for where, count in sorted(self.kills.items()))
        fates = [transaction.fate for transaction in self.history.transactions]
        pieces = ", ".join(
            f"{len(copies.pieces)} by the {name} ({_counts([piece.fate for piece in copies.pieces])})"
            for name, copies in self.copies.items()
        )
        return (
            f"seed {self.seed}: {self.kill_count} kills ({kills}), {self.splits} splits, {self.merges} merges, "
            f"{len(fates)} transactions ({_counts(fates)}), {pieces}; {self.unanswered} commits were unanswered at a "
            f"kill; {self.read} messages read: "
            + ("OK" if not self.complaints else f"{len(self.complaints)} COMPLAINTS")
        )


def _counts(fates: Sequence[Fate]) -> str:
    return ", ".join(f"{fates.count(fate)} {fate.value}" for fate in Fate if fate in fates)
