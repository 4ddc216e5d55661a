"""Cancel an operation at every single step of its task, one step further each time.

    runs = await cancel_at_each_step(operation, check)

Runs `await operation()` again and again: cancelled before it begins, then while it waits for the first time, then just
as that wait ends, then while it waits for the second time, and so on, until a run comes to its end untouched. `await
check()` follows each run and says whether everything is still as it should be. Trio only. The number of runs is
returned, so that a test can see that there was something to cancel.
"""

from collections.abc import Awaitable, Callable

import trio

Step = Callable[[], Awaitable[object]]


class _CancelAtStep(trio.abc.Instrument):
    """Counts the waits of one task and cancels a scope at a given one: while it lasts, or as it ends."""

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
