"""The command line of a script that plays seeds, one after another. Each run has a folder of its own.

A run that fails, or that complains, leaves its folder, and the command says how to repeat it.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol, Self, TypeVar

import trio


class Report(Protocol):
    """What a run found. Its text is one line."""

    complaints: list[str]

    def add(self, other: Self) -> None:
        """Take another run's findings in."""


Found = TypeVar("Found", bound=Report)


def play(run: Callable[..., Awaitable[Found]], *, script: str, description: str | None, verbose: str) -> int:
    """Play the seeds that the command line names. Return the exit status: 1 if a run complains.

    Args:
        run: takes `seed`, `folder` and `verbose`.
        script: its name, without `.py`.
        description: the script's docstring, whose first line the help shows.
        verbose: what `--verbose` prints.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="the first seed [drawn, and printed]")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, one after another [%(default)s]")
    parser.add_argument("--verbose", action="store_true", help=verbose)
    given = parser.parse_args()
    title = script.replace("_", " ")
    first = Random().randrange(1_000_000) if given.seed is None else given.seed  # noqa: S311
    total: Found | None = None
    for seed in range(first, first + given.seeds):
        folder = Path(tempfile.mkdtemp(prefix=f"{script.replace('_', '-')}-"))
        try:
            report: Found = trio.run(partial(run, seed=seed, folder=folder, verbose=given.verbose))
        except BaseException:
            print(f"{title}: seed {seed} failed; the data is in {folder}", file=sys.stderr)
            raise
        print(f"{title}: {report}", flush=True)
        if report.complaints:
            for complaint in report.complaints:
                print(f"  {complaint}")
            print(f"the data is in {folder}; to repeat: scripts/{script}.py --seed {seed}", flush=True)
        else:
            shutil.rmtree(folder)
        if total is None:
            total = report
        else:
            total.add(report)
    assert total is not None, "there is at least one seed"
    if given.seeds > 1:
        print(f"{title}: {total}")
    return 1 if total.complaints else 0
