"""Stops a part of Trio's tasks, as SIGSTOP stops a process: not one of them makes another step until it goes on.

    trio.run(main, instruments=[Stopping()])

    process = Process()
    process.start_soon(nursery, work)       # `work`, and all tasks that it starts, belong to the process
    process.stop()
    process.go_on()

Time goes on meanwhile. A task whose sleep has ended, whose data has arrived or who was cancelled learns of it when the
process goes on. Other processes see nothing but its silence.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar, copy_context
from typing import Any, TypeVarTuple

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task

Ts = TypeVarTuple("Ts")

PROCESS: "ContextVar[Process | None]" = ContextVar("process", default=None)
"""The process of the running task. None: it belongs to the test."""


class Process:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._waiting: list[Task] = []
        self._context = copy_context()
        self._context.run(PROCESS.set, self)

    def start_soon(self, nursery: trio.Nursery, work: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Start a task of this process."""
        self._context.run(lambda: nursery.start_soon(work, *args))

    def stop(self) -> None:
        """Stop it. A task that is in a step ends the step."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Let it go on."""
        self.is_stopped = False
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            trio.lowlevel.reschedule(task)

    async def hold(self, coro: Coroutine[Any, Any, Any]) -> Any:
        """The same coroutine, which makes no step while the process is stopped."""
        return await _Held(self, coro)

    def wait(self) -> Generator[Any, Any, None]:
        """Wait until the process goes on."""
        while self.is_stopped:
            self._waiting.append(trio.lowlevel.current_task())
            waiting = trio.lowlevel.wait_task_rescheduled(_not_now)  # noqa: ASYNC105 - awaited in the next line
            yield from waiting.__await__()


class _Held:
    def __init__(self, process: Process, coro: Coroutine[Any, Any, Any]) -> None:
        self._process = process
        self._coro = coro

    def __await__(self) -> Generator[Any, Any, object]:
        sent: Any = None
        while True:
            yield from self._process.wait()
            try:
                waits_for = self._coro.send(sent)
            except StopIteration as returned:
                result: object = returned.value
                return result
            sent = yield waits_for


def _not_now(_raise_cancel: RaiseCancelT) -> Abort:
    return Abort.FAILED


class Stopping(trio.abc.Instrument):
    """Makes the tasks of processes stoppable."""

    def task_spawned(self, task: Task) -> None:
        process = task.context.get(PROCESS)
        if process is not None:
            task.coro = process.hold(task.coro)  # type: ignore[assignment]
