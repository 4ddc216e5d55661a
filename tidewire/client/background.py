"""A client's background work: it outlives the program's cancellation and ends when the client does.

When a program is cancelled from outside (Ctrl-C, a deadline around it), ordinary child tasks are cancelled in the same
moment. Then the client could no longer talk to a broker. An open transaction could not be aborted, and would hold back
its topics' readers until its timeout. So background work is shielded from outside cancellation. The program's own
calls are not shielded: they end at once. On its way out the client ends the background work, within bounds.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import anyio.abc

from tidewire.client.errors import Closed

OnClose: TypeAlias = Callable[[Closed], None]
"""Called when the client is closed; returns at once and raises nothing."""


def nobody(error: Closed) -> None:
    """For work whose result nobody waits for."""


class BackgroundTask:
    """One piece of background work, made by `Background.start`."""

    __slots__ = ("_finished", "_on_close", "_scope", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], on_close: OnClose) -> None:
        """A task that runs `work` once."""
        self._work = work
        self._on_close = on_close
        self._scope = anyio.CancelScope(shield=True)
        self._finished = anyio.Event()

    async def run(self) -> None:
        """Do the work."""
        try:
            with self._scope:
                await self._work
        finally:
            self._finished.set()

    def cancel(self) -> None:
        """End it. It may need a moment to clean up; `wait` for that."""
        self._scope.cancel()

    def close(self, error: Closed) -> None:
        """End it because the client ends, and tell whoever waits for its result."""
        self._on_close(error)
        self._scope.cancel()

    async def wait(self) -> None:
        """Return when it has ended, for whatever reason."""
        await self._finished.wait()

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self._finished.is_set()


class Background:
    """All background work of one client. An error in it is a bug of this client, and crashes it."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        """Work that runs in `tasks`."""
        self.tasks = tasks
        self._running: set[BackgroundTask] = set()
        self._is_closed = False

    def check_open(self) -> None:
        """Check that more can be started.

        Raises:
            Closed: the client is closed.
        """
        if self._is_closed:
            raise Closed("the client was closed")

    def start(self, work: Coroutine[Any, Any, None], name: str, *, on_close: OnClose = nobody) -> BackgroundTask:
        """Start `work`. If the client is closed before the work has ended, `on_close` is called first.

        Raises:
            Closed: the client is closed.
        """
        if self._is_closed:
            work.close()
            self.check_open()
        task = BackgroundTask(work, on_close)
        self._running = {known for known in self._running if not known.is_finished}
        self._running.add(task)
        self.tasks.start_soon(task.run, name=name)
        return task

    async def aclose(self) -> None:
        """Start nothing more, cancel all running work, and wait until it has ended."""
        self._is_closed = True
        for task in self._running:
            if not task.is_finished:
                task.close(Closed("the client was closed"))
        for task in self._running:
            await task.wait()


@asynccontextmanager
async def background_tasks() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group that ends with its body. An error of the body is raised as it is, not inside an exception group."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:
            failure = error
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
