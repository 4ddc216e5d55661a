"""Counts how often tasks are scheduled, to show that waiting costs nothing.

with TaskSteps() as steps:
    await trio.testing.wait_all_tasks_blocked()
    steps.clear()
    ...
    assert steps.of("run") == 0
"""

from collections import Counter
from types import TracebackType

import trio


class TaskSteps(trio.abc.Instrument):
    """Counts the scheduler's steps by task while its context is open."""

    def __init__(self) -> None:
        self._steps: Counter[str] = Counter()

    def __enter__(self) -> "TaskSteps":
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        trio.lowlevel.remove_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio."""
        self._steps[task.name] += 1

    def clear(self) -> None:
        """Start counting here."""
        self._steps.clear()

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of steps by task name."""
        return dict(self._steps)

    def of(self, name: str) -> int:
        """Return the number of steps of the tasks whose name (the function's qualified name) ends with `name`."""
        return sum(count for task, count in self._steps.items() if task.endswith(name))
