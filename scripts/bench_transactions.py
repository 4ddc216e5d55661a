"""Measures transactions beside Apache Pulsar 5.0.0-M1, with the same Java v5 client at the same time.

    .venv/bin/python scripts/bench_transactions.py [--rounds 200] [--history 100000] [--plot docs/performance]

Both brokers run the whole time, each as its users start it, and take turns phase by phase. Pulsar is a standalone
broker with RocksDB metadata and one bookie. Like Tidewire, the bookie syncs its journal by default;
`--reference-without-fsync` switches that off. The time to open a segment after many past transactions is measured only
on Tidewire.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import trio

import tidewire
from scripts.measuring_programs import PROGRAM_SECONDS_MAX, java_v5, measure, start
from scripts.need import install
from scripts.process_usage import cpu_seconds, resident_mib
from scripts.reference_pulsar import ARTIFACT, RunningPulsar, running_pulsar
from tests.support.processes import RunningBroker, running_broker

Subject = RunningBroker | RunningPulsar

IDLE_SECONDS: Final = 20
SETTLE_SECONDS: Final = 3
RATE_WINDOW_SECONDS: Final = 10
RATE_WINDOWS: Final = 6
PARKED_CONSUMERS: Final = 200
OPEN_TRANSACTIONS: Final = 1_000
OPENINGS: Final = 5
"""How often a broker is killed and its segment opened again. The median counts."""
FORGET_SECONDS: Final = 90
"""Time until headers of ended transactions are removed. Otherwise the broker would remove them during a measurement."""


def _command(subject: Subject) -> Sequence[str]:
    return (*java_v5("TransactionBench"), subject.service_url, subject.http_url)


def phase(subject: Subject, *arguments: object) -> Any:  # noqa: ANN401 - each phase has a shape of its own
    """Run one phase and return what it measured."""
    return measure(_command(subject), *arguments)


class Parked:
    """Within the block, this many consumers wait and this many transactions are open."""

    def __init__(self, subject: Subject, consumers: int, transactions: int) -> None:
        self._program = start(_command(subject), "park", consumers, transactions)

    def __enter__(self) -> None:
        output = self._program.stdout
        assert output is not None
        if output.readline() != "parked\n":
            raise SystemExit("the program with the waiting consumers failed")
        time.sleep(SETTLE_SECONDS)  # noqa: TID251 - waiting is what is measured

    def __exit__(self, *_exception: object) -> None:
        self._program.communicate("\n", timeout=PROGRAM_SECONDS_MAX)


def percentiles(milliseconds: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99."""
    ordered = sorted(milliseconds)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))]


def compare(ours: RunningBroker, theirs: RunningPulsar, rounds: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Print the figures of both. Return the commits' times and the rates, for the plot."""
    subjects: Mapping[str, Subject] = {"tidewire": ours, "pulsar": theirs}

    # This phase is first, because the other phases leave work for a minute after them.
    print("waiting: one parked consumer, one open transaction, 20 s")
    for name, subject in subjects.items():
        with Parked(subject, 1, 1):
            before = cpu_seconds(subject.pid)
            time.sleep(IDLE_SECONDS)  # noqa: TID251 - waiting is what is measured
            print(f"  {name:10}{cpu_seconds(subject.pid) - before:9.2f} s of CPU")

    print("\nmilliseconds p50 and p99           tidewire            pulsar")
    commits = {name: phase(subject, "commits", rounds) for name, subject in subjects.items()}
    p50s = {}
    for participants in commits["tidewire"]:
        row = {name: percentiles(taken[participants]) for name, taken in commits.items()}
        p50s[int(participants)] = row["tidewire"][0]
        ratio = row["tidewire"][0] / row["pulsar"][0]
        _row(f"commit, {participants} segments", row, f"{ratio:.3f} of pulsar's (target: below 0.25)")
    print(f"  p50, 64 segments to 1: {p50s[64] / p50s[1]:.2f} (target: at most 1.3)")
    delivery = {name: percentiles(phase(subject, "delivery", rounds)) for name, subject in subjects.items()}
    _row("delivery after commit returned", delivery, "target: p50 under 1")
    publish = {name: phase(subject, "publish", rounds) for name, subject in subjects.items()}
    for kind, what in (
        ("outside", "publish outside of transactions"),
        ("first", "  first of a transaction"),
        ("later", "  second"),
    ):
        _row(what, {name: percentiles(taken[kind]) for name, taken in publish.items()})
    p50 = {kind: percentiles(taken)[0] for kind, taken in publish["tidewire"].items()}
    print(f"  p50, first to outside: {p50['first'] / p50['outside']:.2f} (target: at most 2.5)")
    print(f"  p50, second to outside: {p50['later'] / p50['outside']:.2f} (target: at most 1.2)")

    print("\ntransactions a second, one message each, 64 in flight, by windows of 10 s")
    rates = {name: phase(subject, "rate", RATE_WINDOW_SECONDS, RATE_WINDOWS) for name, subject in subjects.items()}
    for name, taken in rates.items():
        print(f"  {name:10}" + "".join(f"{rate:9.0f}" for rate in taken))
    ratio = statistics.fmean(rates["tidewire"]) / statistics.fmean(rates["pulsar"])
    print(f"  to pulsar: {ratio:.1f} (target: at least 20)")
    return commits, rates


def _row(what: str, row: Mapping[str, tuple[float, float]], remark: str = "") -> None:
    cells = "".join(f"{row[name][0]:9.2f} {row[name][1]:9.2f}" for name in ("tidewire", "pulsar"))
    print(f"{what:32}{cells}   {remark}", flush=True)


def remember(folder: Path) -> None:
    """Print Tidewire's memory per waiting consumer and per open transaction."""
    for what, consumers, transactions in (
        ("a parked consumer", PARKED_CONSUMERS, 0),
        ("an open transaction", 0, OPEN_TRANSACTIONS),
    ):
        with running_broker(folder / f"{consumers} parked") as broker:
            # The first ones are not counted, because they include one-time allocations.
            with Parked(broker, min(consumers, 10), min(transactions, 10)):
                before_mib = resident_mib(broker.pid)
            with Parked(broker, consumers, transactions):
                kib = (resident_mib(broker.pid) - before_mib) * 1024 / (consumers + transactions)
                print(f"  memory of tidewire for {what}: {kib:.1f} KiB")


def reopen(folder: Path, messages: int, *, in_transactions: bool) -> float:
    """Measure and print the seconds from a restarted broker's ready line until a message to the segment is durable."""
    kind = "transactions" if in_transactions else "plain"
    taken = []
    with running_broker(folder / kind) as broker:
        phase(broker, "history", messages, "history", kind)
        if in_transactions:
            time.sleep(FORGET_SECONDS)  # noqa: TID251 - past transactions are those that were forgotten
        for _opening in range(OPENINGS):
            broker.kill()
            start = time.perf_counter()
            broker.start()
            ready = time.perf_counter()
            trio.run(_send_one, broker.service_url)
            taken.append((ready - start, time.perf_counter() - ready))
            # The first takeover moves the records of aborts from the metadata store into the ledger's index.
            time.sleep(SETTLE_SECONDS)  # noqa: TID251 - and is given the time for it
    ready_seconds = statistics.median(ready for ready, _ in taken)
    open_seconds = statistics.median(opened for _, opened in taken)
    what = "transactions" if in_transactions else "plain messages"
    print(f"  {messages:,} {what}: {open_seconds:.3f} s, ready in {ready_seconds:.2f} s; at first {taken[0][1]:.3f} s")
    return open_seconds


async def _send_one(service_url: str) -> None:
    async with (
        tidewire.connect(service_url) as client,
        client.producer("topic://public/default/history") as producer,
    ):
        await producer.send(b"behind the history", key="key")


def plot(
    path: Path, commits: Mapping[str, Mapping[str, Sequence[float]]], rates: Mapping[str, Sequence[float]]
) -> None:
    """Plot the commit over the number of segments, and the rate over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (axes, flow) = plt.subplots(1, 2, figsize=(11, 4))
    for name, taken in commits.items():
        counts = [int(count) for count in taken]
        (line,) = axes.plot(counts, [percentiles(times)[0] for times in taken.values()], "o-", label=f"{name}, p50")
        tails = [percentiles(times)[1] for times in taken.values()]
        axes.plot(counts, tails, "o:", color=line.get_color(), label=f"{name}, p99")
    axes.set_xscale("log", base=4)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("segments in the transaction")
    axes.set_ylabel("commit, milliseconds")
    axes.legend()
    for name, by_window in rates.items():
        seconds = [RATE_WINDOW_SECONDS * (window + 1) for window in range(len(by_window))]
        flow.plot(seconds, by_window, "o-", label=name)
    flow.set_yscale("log")
    flow.set_xlabel("seconds")
    flow.set_ylabel("transactions a second, 64 in flight")
    flow.legend()
    figure.tight_layout()
    figure.savefig(path / "transactions.png", dpi=120)


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure transactions beside Pulsar.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--history", type=int, default=100_000, help="past transactions of a segment; 0 skips this measurement"
    )
    parser.add_argument("--reference-without-fsync", action="store_true")
    parser.add_argument("--plot", type=Path, help="write the plot to this folder")
    options = parser.parse_args(arguments)
    install("pulsar-java-client")
    install(ARTIFACT)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.rounds} rounds", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidewire-bench-")))
        with (
            running_broker(folder / "data") as ours,
            running_pulsar(folder / "pulsar", fsync=not options.reference_without_fsync) as theirs,
        ):
            commits, rates = compare(ours, theirs, options.rounds)
        remember(folder)
        if options.plot is not None:
            plot(options.plot, commits, rates)
        if options.history:
            print("\nopening a segment behind its past, after kill -9")
            plain = reopen(folder, options.history, in_transactions=False)
            behind = reopen(folder, options.history, in_transactions=True)
            print(f"  transactions to plain: {behind / plain:.2f} (target: at most 1.5)")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
