"""Give a cluster of real processes a bad day, drawn from a seed, and check that it kept its promises.

    .venv/bin/python scripts/chaos.py [--seed 1] [--minutes 2] [--metadata embedded|etcd] [--only ACT ...] [--list]

Three brokers serve clients in Java, Python and Spark. Meanwhile processes are killed and stopped, networks are cut,
muted, held, delayed and half-closed, and topics are moved, split and merged. docs/chaos.md explains the acts and the
verdict.

The script prints each act with the second at which it begins. The same seed draws the same acts. Their timing depends
on the machine, so a seed that failed may need a few runs to fail again. `--only` takes acts and families of acts from
`--list`.

The exit status is 0 if every promise was kept. Otherwise it is 1, and the last lines name the folder with all logs, the
data and the history.
"""

import argparse
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.need import install
from tests.support.chaos.acts import KINDS, Store, chosen, draw, names
from tests.support.chaos.story import Report, run


def main(arguments: Sequence[str]) -> int:
    """Give a cluster a bad day. Return 1 if a promise was broken."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(kind.name for kind in KINDS))
        return 0
    kinds = chosen(options.metadata, options.only or ())
    if not kinds:
        raise SystemExit(f"Metadata in {options.metadata} has none of these acts. --list shows all acts.")
    acts = draw(options.seed, options.minutes * 60, kinds)
    for need in ("etcd", "porcupine", "pulsar-java-client"):
        install(need)
    folder = Path(tempfile.mkdtemp(prefix="tidewire-chaos-"))
    what = f"seed {options.seed}, metadata {options.metadata}"
    print(f"chaos: {what}, {len(acts)} acts in {options.minutes:g} minutes, in {folder}", flush=True)
    day = partial(run, seed=options.seed, with_java=True, with_spark=not options.without_spark, prints=True)
    # The metadata witness's store tells about its reconnects.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    # Its processes must end with it, also when somebody ends it by SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report = trio.run(partial(day, folder, options.metadata, acts))
    except BaseException:
        print(f"chaos: {what} failed; logs and data are in {folder}", file=sys.stderr)
        raise
    _print(report)
    if not report.complaints and not options.keep:
        shutil.rmtree(folder)
    if report.complaints:
        print(f"chaos: {len(report.complaints)} COMPLAINTS, {what}; logs, data and history are in {folder}")
        return 1
    print(f"chaos: every promise was kept, {what}{f'; all of it is in {folder}' if options.keep else ''}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Give a cluster a bad day and check its promises.")
    parser.add_argument("--seed", type=int, default=1, help="draws the acts and the clients' choices [%(default)s]")
    parser.add_argument("--minutes", type=float, default=2, help="how long the acts take together [%(default)g]")
    parser.add_argument("--metadata", type=Store, choices=list(Store), default=Store.EMBEDDED, help="[%(default)s]")
    parser.add_argument("--only", action="append", choices=names(), metavar="ACT", help="this act or family alone")
    parser.add_argument("--without-spark", action="store_true", help="start no Spark job")
    parser.add_argument("--keep", action="store_true", help="keep logs and data also if all is well")
    parser.add_argument("--list", action="store_true", help="list the acts and exit")
    return parser


def _print(report: Report) -> None:
    for name, summary in report.summaries.items():
        print(f"  {name}: {summary}")
    print("  acts: " + ", ".join(f"{count} {kind}" for kind, count in sorted(report.acts.items())))
    print(f"  healed after {report.healed_seconds:.1f} s")
    for complaint in report.complaints:
        print(f"  COMPLAINT: {complaint}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
