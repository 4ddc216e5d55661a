"""What the user of the demo sees: lines, a progress bar on a terminal, and the tables at the end."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tidewire.cli.demo.answer import Answer
from tidewire.cli.demo.expected import HAS_WEATHER
from tidewire.cli.demo.load import Tally

SECONDS_BETWEEN: Final = 10.0
"""How often it is said what goes on, while nothing else is printed."""

LINES_PER_LOAD: Final = 10
"""How many progress lines are printed when there is no terminal for a bar."""


class Report:
    """Writes the demo's output to one console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """Print a line, above the progress bar if one is shown."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[int], None]]:
        """Show progress through `total` transactions. Yield a function; call it with the number done so far."""
        if not self._console.is_terminal:
            yield self._lines(total)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, *times, console=self._console, transient=True) as bar:
            task = bar.add_task("transactions", total=total)
            yield lambda done: bar.update(task, completed=done)

    def _lines(self, total: int) -> Callable[[int], None]:
        said = 0

        def show(done: int) -> None:
            nonlocal said
            tenth = done * LINES_PER_LOAD // total
            if tenth > said:
                said = tenth
                self.say(f"{done:,} of {total:,} transactions")

        return show

    @contextmanager
    def waiting(self, seconds_between: float = SECONDS_BETWEEN) -> Iterator[Callable[[str], None]]:
        """Say now and then what goes on, while something runs whose end is not known. Quick work says nothing.

        Yield a function; call it with what goes on from then on. A thread prints, because the work holds this one.
        """
        begun = time.monotonic()
        doing = "working"
        is_over = threading.Event()

        def tell() -> None:
            while not is_over.wait(seconds_between):
                self.say(f"{doing}, {time.monotonic() - begun:.0f} s so far")

        def does(what: str) -> None:
            nonlocal doing
            doing = what

        thread = threading.Thread(target=tell, name="progress")
        thread.start()
        try:
            yield does
        finally:
            is_over.set()
            thread.join()

    def table(self, expected: pd.DataFrame, answer: Answer, tally: Tally) -> None:
        """Print Spark's answer beside that of pandas, and what the load did."""
        answers = Table("by origin and hour")
        for name in ("Spark", "pandas"):
            answers.add_column(name, justify="right")
        for label, found, right in zip(_LABELS, _sums(answer.windows), _sums(expected), strict=True):
            answers.add_row(label, f"{found:,}", f"{right:,}")
        self._console.print(answers)
        load = Table("load", "")
        for label, text in _load_rows(tally, int(answer.windows["departures"].sum())):
            load.add_row(label, text)
        self._console.print(load)


_LABELS: Final = ("windows", "departures", "minutes of delay", "more than 15 minutes late", "windows with weather")


def _sums(windows: pd.DataFrame) -> list[int]:
    summed = ("departures", "delay_minutes", "late", HAS_WEATHER)
    return [len(windows), *(int(windows[column].sum()) for column in summed)]


def _load_rows(tally: Tally, departures: int) -> list[tuple[str, str]]:
    surplus = tally.departures_sent / departures - 1 if departures else 0.0
    return [
        ("committed", f"{tally.committed:,} transactions, {tally.committed / tally.seconds:,.0f} a second"),
        ("aborted and sent again", f"{tally.aborted:,}"),
        ("run again after failing", f"{tally.rerun:,}"),
        ("splits", f"{tally.splits}"),
        (
            "kill -9",
            f"after {tally.killed_after:,} commits, {tally.killed_open} open; ready after {tally.away_seconds:.1f} s",
        ),
        ("departures without transactions", f"{tally.departures_sent:,} ({surplus:+.1%})"),
    ]
