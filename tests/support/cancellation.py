"""Cancels an operation at every step of its task, one step later in each run.

    runs = await cancel_at_each_step(operation, check)

It runs `await operation()` repeatedly. The first run is cancelled before it begins, the next one during its first wait,
the next one when that wait ends, the next one during its second wait, and so on, until a run ends without a
cancellation. `await check()` follows each run and asserts that the state is correct. It works only under Trio. It
returns the number of runs, so that a test can check that there was something to cancel.
"""

from collections.abc import Awaitable, Callable

import trio

Step = Callable[[], Awaitable[object]]


class _CancelAtStep(trio.abc.Instrument):
    """Counts the waits of one task, and cancels a scope at a given one: during the wait, or when it ends."""

    def __init__(
        self, task: trio.lowlevel.Task, scope: trio.CancelScope, waits_left: int, *, while_it_lasts: bool
    ) -> None:
        self._task = task
        self._scope = scope
        self._waits_left = waits_left
        self._while_it_lasts = while_it_lasts

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task has begun to wait."""
        if task is self._task:
            if self._waits_left == 0 and self._while_it_lasts:
                self._scope.cancel()
            self._waits_left -= 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task is about to run on."""
        if task is self._task and self._waits_left == -1 and not self._while_it_lasts:
            self._scope.cancel()


async def cancel_at_each_step(operation: Step, check: Step) -> int:
    """See the module's docstring."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await operation()
    await check()
    runs = 1
    while scope.cancel_called:
        waits, as_it_ends = divmod(runs - 1, 2)
        with trio.CancelScope() as scope:
            instrument = _CancelAtStep(trio.lowlevel.current_task(), scope, waits, while_it_lasts=not as_it_ends)
            trio.lowlevel.add_instrument(instrument)
            try:
                await operation()
            finally:
                trio.lowlevel.remove_instrument(instrument)
        await check()
        runs += 1
    return runs
