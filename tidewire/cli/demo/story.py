"""The steps of the demo in order: data, brokers, load, Spark, comparison."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console

from tidewire.cli.demo.answer import ask_spark
from tidewire.cli.demo.cluster import Cluster
from tidewire.cli.demo.data import (
    WEATHER_FILE,
    aircraft_days,
    count_transactions,
    find_data,
    name_transactions,
    read_flights,
)
from tidewire.cli.demo.expected import expected_kinds, expected_windows, kinds_differ, read_weather, windows_differ
from tidewire.cli.demo.load import Load, Serving
from tidewire.cli.demo.process import BrokerProcess
from tidewire.cli.demo.report import Report

TOPIC: Final = "topic://public/default/flights"


def play(
    days: int, data_dir: Path | None, folder: Path, console: Console, *, metadata: str, brokers: int = 1
) -> list[str]:
    """Run the demo. Files other than the brokers' data go into `folder`; `metadata` is the brokers' setting.

    Returns:
        The differences between Spark's answer and the right one, a sentence each; [] if there are none.

    Raises:
        CommandFailed: the demo failed before Spark answered.
        DataMissing: the flights are not installed.
    """
    report = Report(console)
    source = find_data()
    flights = name_transactions(read_flights(source, days))
    kinds = expected_kinds(flights)
    total = count_transactions(flights)
    report.say(
        f"{len(flights):,} flights of {days} day{'' if days == 1 else 's'}: "
        f"{sum(kinds.values()):,} events in {total:,} transactions"
    )

    with _serving(data_dir or folder / "data", folder, brokers, metadata, report) as serving:
        with report.progress(total) as show_progress:
            load = Load(serving, TOPIC, aircraft_days(flights), total, say=report.say, show_progress=show_progress)
            tally = anyio.run(load.run)
        report.say(f"{tally.committed:,} transactions in {tally.seconds:.1f} s; asking Spark")
        started = time.perf_counter()
        with report.waiting() as doing:
            answer = ask_spark(serving.service_url, TOPIC, source / WEATHER_FILE, folder, doing)
        report.say(f"Spark answered after {time.perf_counter() - started:.1f} s")

    windows = expected_windows(flights, read_weather(source))
    report.table(windows, answer, tally)
    return [*kinds_differ(kinds, answer.kinds), *windows_differ(windows, answer.windows)]


@contextmanager
def _serving(data_dir: Path, folder: Path, brokers: int, metadata: str, report: Report) -> Iterator[Serving]:
    """Run one broker, or several as a cluster."""
    if brokers > 1:
        with Cluster(data_dir, TOPIC, brokers, metadata, say=report.say) as cluster:
            yield cluster
        return
    with BrokerProcess(data_dir, folder / "broker.log", metadata=metadata) as broker:
        report.say(f"broker {broker.pid} at {broker.service_url}, data in {broker.data_dir}, metadata {metadata}")
        yield broker
