"""Runs the whole pipeline; the last line is `pipeline: OK`.

    python -m examples.flights.run --days 14

It starts a broker. Then it repeats two steps: it sends a few days of flights, and runs the Spark job. In the middle of
one run it kills the broker and the job with all their processes, starts both again, and continues. In the end it
compares the results with what pandas computes from the files, and writes a page with plots.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import NoReturn

import anyio
import pandas as pd

from . import expected
from .compare import differences
from .flights import AircraftDay, read_flights, transactions
from .ingest import Ingest
from .page import Facts, write_page
from .processes import Broker, Process, ProcessFailed
from .stream import CHAINS, FLIGHTS, HOURLY
from .topics import Topics

DAYS_PER_RUN = 2
"""Days that are sent between two runs of the job."""

TICK_AFTER_DAYS = 30
"""How far after the last event the tick is: later than any window or timer."""
KEYS = {"hourly": ["origin", "hour"], "chains": ["tailnum", "started"]}
OURS = ("broker", "checkpoints", "archive", "answers", "logs", "spark", "warehouse")
"""Entries that a run leaves in the folder besides the page. The next run removes them."""
PAGES = ("flights.html", "flights.svg")


def play(days: int, folder: Path) -> list[str]:
    """Run the pipeline. Return the differences from pandas; [] if there are none."""
    for name in OURS:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "logs").mkdir(parents=True)
    flights = read_flights(days)
    rounds = in_rounds(transactions(flights))
    say(f"{len(flights):,} flights of {days} days, sent and processed in {len(rounds)} rounds")
    facts = Facts(days)
    with Broker(folder / "broker", folder / "logs" / "broker.log") as broker:
        say(f"broker at {broker.service_url}")
        stream(broker, folder, rounds, facts)
        say("reading the results from the topics")
        with spark(broker, folder, "answers") as answers:
            answers.line()
    return judge(flights, folder, facts)


def in_rounds(days: list[AircraftDay]) -> list[list[AircraftDay]]:
    """Group the transactions by `DAYS_PER_RUN` days."""
    first = days[0].day
    return [list(some) for _, some in groupby(days, key=lambda day: (day.day - first).days // DAYS_PER_RUN)]


def stream(broker: Broker, folder: Path, rounds: list[list[AircraftDay]], facts: Facts) -> None:
    """Send and process one round after another."""
    topics = Topics(broker.http_url)
    for topic in (FLIGHTS, HOURLY, CHAINS):
        topics.create(topic, segments=2)
    ingest = Ingest(broker.service_url, FLIGHTS)
    job = spark(broker, folder, "stream")
    try:
        for number, some in enumerate(rounds, 1):
            change = Change(topics, merges=number % 3 == 2)
            anyio.run(ingest.send, some, change)
            facts.changes.append(change.said)
            say(f"round {number}: {len(some):,} transactions sent; {change.said} meanwhile")
            job.ask("run")
            # By this round windows are emitted, so the job is killed while it writes.
            if number == len(rounds) // 2 + 1:
                show_a_line(job)
                job = kill_both(broker, job, folder, facts)
                job.ask("run")
            follow(job)
        # Only a later event moves the watermark past the last windows. It is sent in a separate run, so that no other
        # event comes in a later micro-batch.
        last_ms = max(time_ms for day in rounds[-1] for time_ms, _ in day.events)
        anyio.run(ingest.tick, last_ms + TICK_AFTER_DAYS * 24 * 3600 * 1000)
        say("all flights are sent; a last run closes the last windows")
        job.ask("run")
        follow(job)
        job.end()
    finally:
        job.kill()
    facts.transactions, facts.events, facts.aborted = (
        ingest.done.transactions,
        ingest.done.events,
        ingest.done.aborted,
    )


class Change:
    """A call of this object splits or merges the flights' topic."""

    def __init__(self, topics: Topics, *, merges: bool) -> None:
        """Set up; nothing is changed yet."""
        self.said = ""
        self._topics = topics
        self._merges = merges

    def __call__(self) -> None:
        """Make the change, and remember its description."""
        self.said = (self._topics.merge_narrowest if self._merges else self._topics.split_widest)(FLIGHTS)


def spark(broker: Broker, folder: Path, module: str) -> Process:
    """Start one of this example's Spark jobs."""
    flags = ["--service-url", broker.service_url, "--folder", str(folder)]
    return Process([f"{__package__}.{module}", *flags], folder / "logs" / f"{module}.log", ends_by_signal=False)


def kill_both(broker: Broker, job: Process, folder: Path, facts: Facts) -> Process:
    """Kill the job in the middle of its run, and the broker, with kill -9. Start both again."""
    started = time.monotonic()
    broker.kill()
    job.kill()
    broker.start()
    facts.away_seconds = time.monotonic() - started
    say(f"  kill -9: the broker and the job; the broker is ready after {facts.away_seconds:.1f} s, the job continues")
    return spark(broker, folder, "stream")


def follow(job: Process) -> None:
    """Show the output of a run until it is done."""
    while show_a_line(job) != "done":
        pass


def show_a_line(job: Process) -> str:
    """Wait for the next line of a job, and show it if it is about a query."""
    while (line := job.line()) == "ready":
        pass
    if line != "done":
        say(f"  {line}")
    return line


def judge(flights: pd.DataFrame, folder: Path, facts: Facts) -> list[str]:
    """Compare the results with pandas, and write the page."""
    right = {"hourly": expected.hourly(flights), "chains": expected.chains(flights)}
    wrong = []
    found = {}
    for name, key in KEYS.items():
        for what, path in (("topic", name), ("archive", f"{name}-archive")):
            found[name] = pd.read_parquet(folder / "answers" / path)
            wrong += differences(f"{what} {name}", right[name], found[name], key)
            say(f"{what} {name}: {len(found[name]):,} rows, pandas has {len(right[name]):,}")
    counts = json.loads((folder / "answers" / "counts.json").read_text())
    facts.committed, facts.uncommitted = counts["read_committed"], counts["read_uncommitted"]
    departures = int(flights["dep_delay"].notna().sum())
    if facts.committed != departures:
        wrong.append(f"{facts.committed} departures are committed instead of {departures}")
    if facts.uncommitted <= facts.committed:
        wrong.append("no aborted departure is in the topic, so the run tested nothing")
    more = facts.uncommitted / facts.committed - 1
    say(
        f"departures: {facts.committed:,} committed, pandas has {departures:,}; "
        f"{facts.uncommitted:,} ({more:+.1%}) including uncommitted ones"
    )
    facts.differences = len(wrong)
    page = write_page(folder, found["hourly"], found["chains"], facts)
    say(f"the page: {page}")
    return wrong


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def main() -> None:
    """Run the pipeline, and print how it ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=14, help="number of days of 2013 to stream, from January 1st")
    parser.add_argument("--folder", type=Path, default=Path("build/flights"), help="folder for all data and the page")
    given = parser.parse_args()
    if others := sorted({path.name for path in given.folder.glob("*")} - {*OURS, *PAGES}):
        parser.error(f"--folder {given.folder} contains other files ({others[0]}); give a folder that may be emptied")
    # On SIGTERM, stop the child processes too.
    signal.signal(signal.SIGTERM, _end)
    try:
        wrong = play(given.days, given.folder.absolute())
    except ProcessFailed as failed:
        sys.exit(f"pipeline: {failed}")
    except KeyboardInterrupt:
        sys.exit("pipeline: interrupted")
    if wrong:
        say("pipeline: WRONG, the results differ from what pandas computes from the files:")
        sys.exit("\n".join(f"  {one}" for one in wrong))
    say("pipeline: OK")


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
