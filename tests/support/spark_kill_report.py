"""The report of a Spark kill loop: what was killed, what was written, and what was wrong. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from tests.support.history import Fate, History


@dataclass
class Report:
    """The result of a kill loop."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    history: History = field(default_factory=History)
    missed: int = 0
    """Kills whose moment did not come."""
    ended: list[str] = field(default_factory=list)
    """Why drivers ended without being killed."""
    splits: int = 0
    merges: int = 0
    batches: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        fates = [transaction.fate for transaction in self.history.transactions]
        counts = ", ".join(f"{fates.count(fate)} {fate.value}" for fate in Fate if fate in fates)
        rows = ", ".join(f"{count} {where}" for where, count in self.rows.items())
        return (
            f"seed {self.seed}: killed {_counted(self.kills)} ({self.missed} not at their moment); "
            f"{len(self.ended)} drivers ended otherwise; {self.splits} splits, {self.merges} merges, {self.batches} "
            f"micro-batches, {len(fates)} transactions ({counts}); messages: {rows}: "
            + ("OK" if not self.complaints else f"{len(self.complaints)} COMPLAINTS")
        )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "nothing"
