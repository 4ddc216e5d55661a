"""One process's view of the simulated disk: it can be stopped or killed at any of its operations, and interleaved.

    files = ProcessFiles(disk, process, Random(seed))
    files.at(Moment("sync", ".log"), process.stop)      # before the next sync of a log file
    files.pauses = 0.2                                  # the chance of a pause before each operation
    files.end()                                         # its locks are free, and it writes nothing

What the code under test runs in a worker thread runs in a thread here too, if it may have to wait in its middle. Only
one of the two threads runs at a time, so a run is repeatable.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from errno import EIO
from functools import partial
from pathlib import Path
from random import Random
from typing import Generic, TypeVar, TypeVarTuple

import trio

from storage.files import Lock
from tests.support.cluster.stopping import Process
from tests.support.disk import SimulatedFiles

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ProcessEnded(OSError):
    """The process was killed, so it reaches no disk."""


@dataclass
class Moment:
    """Before the operation `count` of those that match."""

    operation: str = ""
    name: str = ""
    """A part of the file's name."""
    count: int = 1

    def has_come(self, operation: str, path: Path) -> bool:
        """Whether it is this one. Called for each operation."""
        if operation.startswith(self.operation) and self.name in path.name:
            self.count -= 1
        return self.count == 0


class _Aside(Generic[T]):
    """A call in a thread of its own, which runs only while the event loop waits for it."""

    _current = threading.local()

    def __init__(self, call: Callable[[], T]) -> None:
        self.is_done = False
        self.pause = 0.0
        """How long it waits."""
        self.act: Callable[[], None] | None = None
        """What the event loop does while it waits."""
        self._call = call
        self._result: T
        self._error: BaseException | None = None
        self._its_turn = threading.Semaphore(0)
        self._our_turn = threading.Semaphore(0)
        context = copy_context()
        threading.Thread(target=context.run, args=(self._work,), daemon=True).start()

    @classmethod
    def current(cls) -> "_Aside[object] | None":
        """The call that this thread runs."""
        return getattr(cls._current, "aside", None)

    def go_on(self) -> None:
        """Let it run, until it is done or waits."""
        self._its_turn.release()
        self._our_turn.acquire()

    def wait(self, *, pause: float = 0, act: Callable[[], None] | None = None) -> None:
        """Called by itself: wait for the next `go_on`."""
        self.pause, self.act = pause, act
        self._our_turn.release()
        self._its_turn.acquire()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result

    def _work(self) -> None:
        self._current.aside = self
        self._its_turn.acquire()
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error
        self.is_done = True
        self._our_turn.release()


class ProcessFiles(SimulatedFiles):
    """See the module's docstring."""

    def __init__(self, disk: SimulatedFiles, process: Process, random: Random) -> None:
        super().__init__()
        self._disk = disk._disk
        self._process = process
        self._random = random
        self._locks: list[Lock] = []
        self._moments: list[tuple[Moment, Callable[[], None]]] = []
        self._has_ended = False
        self.latency_max = 0.0
        """Above 0, a call takes up to so many seconds before and after its work."""
        self.pauses = 0.0
        """See the module's docstring."""

    def at(self, moment: Moment, act: Callable[[], None]) -> None:
        """Act at that moment."""
        self._moments.append((moment, act))

    def forget_moments(self) -> None:
        """Act at none of the moments any more."""
        self._moments.clear()

    def end(self) -> None:
        """The process has ended."""
        self._has_ended = True
        self._moments.clear()
        for lock in self._locks:
            lock.close()

    def lock(self, path: Path, *, shared: bool = False) -> "Lock":  # type: ignore[override]
        """See `Files.lock`."""
        lock = super().lock(path, shared=shared)
        self._locks.append(lock)
        return lock

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """See `Files.run`."""
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            await self._take_time()
            try:
                if self._moments or self.pauses:
                    return await self._run_aside(partial(call, *args))
                return call(*args)
            finally:
                await self._take_time()
        raise AssertionError("a shielded scope is not cancelled")

    async def _run_aside(self, call: Callable[[], T]) -> T:
        aside = _Aside(call)
        aside.go_on()
        while not aside.is_done:
            if aside.act is not None:
                aside.act()
            # A process that is stopped does not come back from here.
            await trio.sleep(aside.pause)
            aside.go_on()
        return aside.result()

    async def _take_time(self) -> None:
        if self.latency_max:
            await trio.sleep(self._random.uniform(0, self.latency_max))

    def step(self, operation: str, path: Path) -> None:
        """See `SimulatedFiles.step`."""
        aside = _Aside.current()
        for each in self._moments.copy():
            moment, act = each
            # While an earlier one held this call, it may have come elsewhere or been forgotten.
            if each in self._moments and moment.has_come(operation, path):
                self._moments.remove(each)
                if aside is None:
                    act()
                else:
                    aside.wait(act=act)
        if aside is not None and self.pauses and self._random.random() < self.pauses:
            aside.wait(pause=self._random.uniform(0, 2 * self.latency_max))
        if self._has_ended:
            raise ProcessEnded(EIO, "the process was killed", str(path))
        super().step(operation, path)
