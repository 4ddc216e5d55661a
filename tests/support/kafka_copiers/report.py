"""The report of a seed of scripts/kafka_kills.py: what was killed, what was copied, and what was wrong. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from tests.support.history import Fate, History


@dataclass
class Report:
    """The result of one seed, or the sum of several."""

    seed: int
    history: History = field(default_factory=History)
    broker: Counter[str] = field(default_factory=Counter)
    """How the broker's lives ended."""
    copiers: Counter[str] = field(default_factory=Counter)
    """In which steps copiers were killed or stopped."""
    fenced: int = 0
    """Processes that ended because another one had their transactional id, or their transaction was aborted in time."""
    replaced: int = 0
    """Processes that ended because their heir, or the one before, had their instance id."""
    copies: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    seeds: int = 1
    transactions: Counter[Fate] = field(default_factory=Counter)

    def close(self) -> None:
        """Count what is in the history. Nothing follows."""
        self.transactions.update(transaction.fate for transaction in self.history.transactions)

    def add(self, other: Self) -> None:
        """Add what another seed did."""
        self.seeds += other.seeds
        self.fenced += other.fenced
        self.replaced += other.replaced
        self.complaints += other.complaints
        for mine, its in (
            (self.broker, other.broker),
            (self.copiers, other.copiers),
            (self.copies, other.copies),
        ):
            mine.update(its)
        self.transactions.update(other.transactions)

    def __str__(self) -> str:
        fates = ", ".join(f"{count} {fate.value}" for fate, count in sorted(self.transactions.items(), key=str))
        who = f"seed {self.seed}" if self.seeds == 1 else f"{self.seeds} seeds"
        return (
            f"{who}: the broker ended {self.broker.total()} times ({_counted(self.broker)}), "
            f"copiers {self.copiers.total()} times ({_counted(self.copiers)}), "
            f"{self.fenced} were fenced, {self.replaced} replaced; "
            f"{self.transactions.total()} transactions to copy ({fates}); copies: {_counted(self.copies)}: "
            + ("OK" if not self.complaints else f"{len(self.complaints)} COMPLAINTS")
        )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "nothing"
