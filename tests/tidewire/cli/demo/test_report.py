"""What the user of the demo sees."""

import threading
from io import StringIO

import pandas as pd
from rich.console import Console

from tidewire.cli.demo.answer import Answer
from tidewire.cli.demo.expected import COLUMNS
from tidewire.cli.demo.load import Tally
from tidewire.cli.demo.report import Report


def test_without_a_terminal_progress_is_ten_lines() -> None:
    output = StringIO()
    report = Report(Console(file=output))
    with report.progress(25) as show:
        for done in range(1, 26):
            show(done)
    lines = output.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "3 of 25 transactions"
    assert lines[-1] == "25 of 25 transactions"


def test_on_a_terminal_lines_stand_above_a_bar_that_goes_away() -> None:
    output = StringIO()
    report = Report(Console(file=output, force_terminal=True, width=100))
    with report.progress(2) as show:
        show(1)
        report.say("a [line] of its own")
        show(2)
    assert "a [line] of its own\n" in output.getvalue()
    assert "2/2" in output.getvalue()


class Lines(StringIO):
    """Tells when a second line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_two = threading.Event()

    def write(self, text: str, /) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= 2:
            self.has_two.set()
        return written


def test_long_work_says_what_goes_on_until_it_is_over() -> None:
    output = Lines()
    report = Report(Console(file=output))
    with report.waiting(seconds_between=0.01) as doing:
        doing("Spark reads")
        assert output.has_two.wait(60)
    lines = output.getvalue().splitlines()
    assert set(lines[1:]) <= {"Spark reads, 0 s so far"}
    with report.waiting(seconds_between=60):
        pass
    # Quick work said nothing, and the first work's thread has ended.
    assert output.getvalue().splitlines() == lines


def test_the_table_shows_both_answers_and_the_load() -> None:
    output = StringIO()
    rows = [("JFK", 0, 1000, 2000, 30, True, 1.0, 1.0, 1.0, 1.0), ("LGA", 0, 1, 0, 0, False, None, None, None, None)]
    windows = pd.DataFrame(rows, columns=COLUMNS)
    tally = Tally(
        committed=500, aborted=50, splits=3, departures_sent=1101, killed_after=250, killed_open=64, seconds=2.0
    )
    Report(Console(file=output, width=100)).table(windows[:1], Answer(windows, {}), tally)
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in output.getvalue().splitlines()]
    assert ["windows", "2", "1"] in cells
    assert ["departures", "1,001", "1,000"] in cells
    assert ["more than 15 minutes late", "30", "30"] in cells
    assert ["windows with weather", "1", "1"] in cells
    assert ["committed", "500 transactions, 250 a second"] in cells
    assert ["departures without transactions", "1,101 (+10.0%)"] in cells
    assert ["kill -9", "after 250 commits, 64 open; ready after 0.0 s"] in cells
