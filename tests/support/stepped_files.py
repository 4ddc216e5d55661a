"""A process's view of the simulated disk that can be stopped between any two operations of one blocking call.

    files = SteppedFiles(disk)
    files.at = lambda operation, path: files.stop()     # before the next operation, also in the middle of a call
    ...
    files.resume()

A `SimulatedFiles` runs a blocking call whole. Here the call runs in a thread of its own, one operation at a time, and
between two operations the other tasks have a turn. Only one thread runs at a time, so a run depends on the seed alone.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import trio

from tests.support.disk import Hook, SimulatedFiles
from tests.support.stepped_call import SteppedCall

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


_of_thread = threading.local()


class _Call(SteppedCall):
    """A blocking call. It pauses before each operation."""

    next: tuple[str, Path] | None = None
    """The operation that the next step begins with; None before the first one."""


class SteppedFiles(SimulatedFiles):
    """See the module's docstring."""

    def __init__(self, disk: SimulatedFiles) -> None:
        super().__init__()
        self._disk = disk._disk
        self.at: Hook | None = None
        """Called before each operation. It may call `stop`."""
        self.before = self._pause

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint()
        made: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            _of_thread.call = stepped
            try:
                made.append(call(*args))
            except BaseException as error:
                failed.append(error)

        stepped = _Call(work)
        # As a worker thread, it goes on when its caller is cancelled, and its caller waits for it.
        with trio.CancelScope(shield=True):
            while not stepped.is_done:
                while not self._gate.is_set():
                    await self._gate.wait()
                stepped.step()
                if self.at is not None and stepped.next is not None and not stepped.is_done:
                    self.at(*stepped.next)
                await trio.lowlevel.checkpoint()
        if failed:
            raise failed[0]
        return made[0]

    def _pause(self, operation: str, path: Path) -> None:
        stepped: _Call | None = getattr(_of_thread, "call", None)
        if stepped is not None:
            stepped.next = operation, path
            stepped.pause()
        elif self.at is not None:
            self.at(operation, path)
