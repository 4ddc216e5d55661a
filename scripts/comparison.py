"""Measures systems in turns, one at a time, and reports their figures side by side.

    report = Report(("tidewire", "kafka"))
    with alone(subjects) as turn_of:
        subject = turn_of("tidewire")
        measured = run(subject.pid, command, "produce", 1_024)
        report.add("produce 1 KiB, messages/s", "tidewire", measured.rate, ",.0f")
    report.print()

While one system is measured, the others are stopped by SIGSTOP, because an idle JVM also uses the cores. Every figure
is the median of the repeats, with the lowest and highest.
"""

import os
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from scripts.measuring_programs import measure
from scripts.process_usage import cpu_seconds

SETTLE_SECONDS: Final = 4
"""How long a broker has to itself before it is measured. Kafka joins its own cluster again after a stop."""


class Subject(Protocol):
    """One of the systems."""

    @property
    def pid(self) -> int:
        """Its broker's process."""
        ...


AnySubject = TypeVar("AnySubject", bound=Subject)


@dataclass(frozen=True, slots=True)
class Measured:
    """The output of one program, and the resources that the broker used meanwhile."""

    result: Any
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Messages or transactions per second."""
        return float(self.result["done"] / self.result["seconds"])

    @property
    def cpu_each(self) -> float:
        """The broker's CPU seconds for one message or transaction."""
        return float(self.cpu_seconds / self.result["done"])


def run(pid: int, command: Sequence[str], *arguments: object) -> Measured:
    """Run one phase. Its CPU time is counted between the lines `measuring` and `measured`."""
    at = {}

    def note(line: str) -> None:
        at[line] = cpu_seconds(pid)

    measured = measure(command, *arguments, heard=note)
    return Measured(measured, at["measured"] - at["measuring"])


@contextmanager
def alone(subjects: Mapping[str, AnySubject]) -> Iterator[Callable[[str], AnySubject]]:
    """Yield a function that gives one system the machine: the others' brokers stop until it is called again."""
    stopped: list[int] = []

    def resume() -> None:
        while stopped:
            os.kill(stopped.pop(), signal.SIGCONT)

    def turn_of(system: str) -> AnySubject:
        resume()
        for name, subject in subjects.items():
            if name != system:
                os.kill(subject.pid, signal.SIGSTOP)
                stopped.append(subject.pid)
        # What they wrote without a sync would otherwise delay the syncs of this one.
        os.sync()
        time.sleep(SETTLE_SECONDS)  # noqa: TID251 - the other systems report nothing to wait for
        return subjects[system]

    try:
        yield turn_of
    finally:
        resume()


def spread(values: Sequence[float], form: str) -> str:
    """Format the median, lowest and highest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


class Report:
    """Collects figures by row and system, over the repeats; prints and keeps them."""

    def __init__(self, systems: Sequence[str]) -> None:
        self._systems = systems
        self._rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._forms: dict[str, str] = {}

    def add(self, row: str, system: str, value: float, form: str) -> None:
        """Add one figure of one repeat."""
        self._rows[row][system].append(value)
        self._forms[row] = form

    def median(self, row: str, system: str) -> float:
        """Return the median over the repeats."""
        return statistics.median(self._rows[row][system])

    def has(self, row: str, *systems: str) -> bool:
        """Return whether the row was measured for all these systems."""
        return row in self._rows and all(self._rows[row][system] for system in systems)

    def print(self) -> None:
        """Print one line for each row."""
        print(f"\n{'':44}" + "".join(f"{system:>30}" for system in self._systems))
        for row, by_system in self._rows.items():
            cells = (spread(by_system[s], self._forms[row]) if by_system[s] else "-" for s in self._systems)
            print(f"{row:44}" + "".join(f"{cell:>30}" for cell in cells))

    def figures(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """Return all figures."""
        return {row: dict(by_system) for row, by_system in self._rows.items()}
