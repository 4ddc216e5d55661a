"""Kill a metadata store (kill -9) under concurrent clients and watches, and check whether it kept its contract.

    python scripts/judge_metadata.py --store embedded --seconds 60 [--seed N] [--keep FOLDER]
    python scripts/judge_metadata.py --history FOLDER/history.jsonl

The embedded store runs in a separate process; etcd is its own process. Five clients make calls on a few keys:
compare-and-set, deletions, sequential puts, change sets of several records, scans and index queries. Watches follow.
The process is killed at moments that the seed draws, also in the middle of disk writes. Porcupine checks the history
(tests/linearizability/judge, built by scripts/need.py porcupine), and the output of the watches is compared with it.
Then a writer of change sets of 10,000 records is killed in the middle of them. (On etcd they are as large as it
allows.)

If all is well, the last line is `judged: N operations, K kills, legal`, and the exit status is 0. Otherwise the script
says what is wrong, and where it saved the history and pictures of the keys that cannot be explained. `--history` checks
such a history again.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import structlog
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.need import install
from tests.linearizability.big_sets import run_big_sets
from tests.linearizability.harness import run
from tests.linearizability.histories import judge
from tests.linearizability.subjects import SUBJECTS

KILLS_MAX: Final = 1_000_000
"""A number that is never reached: a run ends by time."""
SECONDS_A_LARGE_KILL: Final = 10
"""One kill in a large change set for each this many seconds of the run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=sorted(SUBJECTS), default="embedded", help="which [%(default)s]")
    parser.add_argument("--seconds", type=float, default=60, help="how long clients make calls [%(default)g]")
    parser.add_argument("--seed", type=int, default=None, help="seed of calls and kills [drawn, and printed]")
    parser.add_argument("--keep", type=Path, default=None, help="keep the history in this folder, legal or not")
    parser.add_argument("--history", type=Path, default=None, help="only check this history again")
    parser.add_argument("--verbose", action="store_true", help="print each kill's moment, and the store's log")
    given = parser.parse_args()
    install("porcupine")
    if given.history is not None:
        return _judge_again(given.history, shares_revisions=given.store == "etcd")
    if not given.verbose:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    seed = Random().randrange(1_000_000) if given.seed is None else given.seed  # noqa: S311
    return _judge(given.store, given.seconds, seed, given.keep, verbose=given.verbose)


def _judge(store: str, seconds: float, seed: int, keep: Path | None, *, verbose: bool) -> int:
    folder = Path(tempfile.mkdtemp(prefix="judge-metadata-"))
    say = print if verbose else str
    for part in ("calls", "large"):
        (folder / part).mkdir()
    with SUBJECTS[store](folder / "calls") as subject:
        report = trio.run(lambda: run(subject, seed=seed, kills=KILLS_MAX, seconds=seconds, say=say))
        shares_revisions = subject.shares_revisions
    print(f"{store}, seed {seed}: {report}", flush=True)
    kills = max(1, round(seconds / SECONDS_A_LARGE_KILL))
    with SUBJECTS[store](folder / "large") as subject:
        large = trio.run(lambda: run_big_sets(subject, seed=seed, kills=kills))
    print(f"{store}, seed {seed}: {large}", flush=True)
    complaints = report.complaints + large.complaints
    for complaint in complaints:
        print(f"  {complaint}")
    if complaints or keep is not None:
        kept = keep or folder
        kept.mkdir(parents=True, exist_ok=True)
        lines = report.with_watches().lines()
        (kept / "history.jsonl").write_bytes(lines)
        if report.verdict != "legal":
            judge(lines, shares_revisions=shares_revisions, pictures=kept)
        print(f"the history is in {kept}")
    if not complaints:
        shutil.rmtree(folder)
    operations = sum(call.kind != "seen" for call in report.history.calls) + len(large.attempts)
    verdict = report.verdict if not large.complaints else "illegal"
    print(f"judged: {operations} operations, {report.kills.total() + large.kills} kills, {verdict}")
    return 1 if complaints else 0


def _judge_again(history: Path, *, shares_revisions: bool) -> int:
    lines = history.read_bytes()
    verdict = judge(lines, shares_revisions=shares_revisions, pictures=history.parent)
    for complaint in verdict.complaints:
        print(f"  {complaint}")
    print(f"judged: {len(lines.splitlines())} operations, {verdict.verdict}")
    return 0 if verdict.verdict == "legal" else 1


if __name__ == "__main__":
    sys.exit(main())
