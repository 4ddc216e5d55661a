"""The figures of a benchmark, their targets, and how both are printed.

    figures = Figures()
    figures.add("fail-over to first publish", "s", 2.31, at_most=3)
    print(*figures.lines(), sep=os.linesep)

One row collects the values of all repeats. It is printed with its median, its lowest and highest value, and its target.
The median counts for the target.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Row:
    """One kind of figure."""

    unit: str
    at_most: float | None
    """The target for the median; None if there is none."""
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The figure that counts."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool:
        """Whether the median meets the target."""
        return self.at_most is None or self.median <= self.at_most


class Figures:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, name: str, unit: str, *values: float, at_most: float | None = None) -> None:
        """Add values to a row. All calls for a row name the same unit and target."""
        row = self.rows.setdefault(name, Row(unit, at_most))
        assert (row.unit, row.at_most) == (unit, at_most), f"{name} has one unit and one target"
        row.values.extend(values)

    def lines(self) -> list[str]:
        """The table as text."""
        width = max((len(name) for name in self.rows), default=0)
        return [f"{name:{width}}  {_shown(row)}" for name, row in self.rows.items()]

    def missed(self) -> list[str]:
        """The rows that miss their target."""
        return [name for name, row in self.rows.items() if not row.is_met]

    def plain(self) -> Mapping[str, Mapping[str, object]]:
        """Everything, for a file."""
        return {
            name: {"unit": row.unit, "at_most": row.at_most, "values": row.values} for name, row in self.rows.items()
        }


def number(value: float) -> str:
    """Format a number with three digits, and without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}" if abs(value) >= 0.001 else f"{value:.3f}"


def spread(values: Sequence[float]) -> str:
    """Format the median, and the lowest and highest behind it."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))}, {len(values)} values)"


def _shown(row: Row) -> str:
    shown = f"{spread(row.values)} {row.unit}"
    if row.at_most is None:
        return shown
    return f"{shown}; target at most {row.at_most:g}: {'met' if row.is_met else 'MISSED'}"
