"""Several processes on one simulated disk, in every order of their operations that the seeds draw.

    outcomes = interleave(disk, random.Random(seed), [claim_one, claim_two], deaths=0.2)

Each call gets a process's view of the disk, and blocks as code in a worker thread does. Before each operation of the
disk, the process waits until it is drawn. Some processes are drawn rarely, so they sleep through many operations of
the others. With `deaths`, a process may die before any operation: it changes nothing more.

A run depends on the seed alone. The threads take turns: only one of them runs at a time.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from tests.support.disk import SimulatedFiles
from tests.support.stepped_call import SteppedCall

T = TypeVar("T")

_WEIGHTS: Final = (1, 1, 4, 30)
_DEATH_STEPS_MAX: Final = 40


class Died(Exception):
    """The simulated process was killed."""


class _Process(Generic[T]):
    def __init__(self, files: SimulatedFiles, call: Callable[[SimulatedFiles], T], weight: int, dies_at: int) -> None:
        self.weight = weight
        self.outcome: T | BaseException | None = None
        self._files = files
        self._call = call
        self._steps_left = dies_at
        files.before = self._before
        self.stepped = SteppedCall(self._run)

    def _before(self, _operation: str, _path: Path) -> None:
        self.stepped.pause()
        if not self._steps_left:
            raise Died
        self._steps_left -= 1

    def _run(self) -> None:
        try:
            self.outcome = self._call(self._files)
        except BaseException as error:
            self.outcome = error
        self._files.before = None


def interleave(
    disk: SimulatedFiles, rng: random.Random, calls: Sequence[Callable[[SimulatedFiles], T]], *, deaths: float = 0.0
) -> list[T | Died]:
    """Run the calls, each as a process of its own, and return what they returned. Other errors are raised."""
    processes = [
        _Process(
            disk.process(),
            call,
            rng.choice(_WEIGHTS),
            rng.randrange(_DEATH_STEPS_MAX) if rng.random() < deaths else -1,
        )
        for call in calls
    ]
    while alive := [process for process in processes if not process.stepped.is_done]:
        rng.choices(alive, [process.weight for process in alive])[0].stepped.step()
    outcomes: list[T | Died] = []
    for process in processes:
        if isinstance(process.outcome, BaseException) and not isinstance(process.outcome, Died):
            raise process.outcome
        outcomes.append(process.outcome)  # type: ignore[arg-type]
    return outcomes
