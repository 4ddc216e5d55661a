"""Ends a command when its disk stops answering.

A read of a disk that hangs, or of a network mount whose server is gone, may never return, and no signal interrupts it.
So another thread reads, and says before each operation what it is about to touch:

    disk = SilentDisk()
    disk.run(work)              # work does, for each operation: with disk.touching(path): ...

No operation may take long. All of them together may, because a large folder has many files.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tidewire.cli.endings import CommandFailed

OPERATION_SECONDS_MAX: Final = 10.0
"""How long a disk may take for one operation. A busy disk takes a second."""

T = TypeVar("T")


class Operation(NamedTuple):
    """What the disk was asked to do, and when."""

    path: Path
    began: float


def seconds_left(operation: Operation | None, now: float) -> float:
    """Return how much time the operation that goes on has left. Without one, the next one has all of it."""
    return OPERATION_SECONDS_MAX if operation is None else operation.began + OPERATION_SECONDS_MAX - now


class SilentDisk:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._operation: Operation | None = None

    @contextmanager
    def touching(self, path: Path) -> Iterator[None]:
        """Say that the block is one operation of the disk, on this path."""
        self._operation = Operation(path, time.monotonic())
        try:
            yield
        finally:
            self._operation = None

    def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise its error. It runs in another thread.

        Raises:
            CommandFailed: an operation took too long. The thread is left alone, and ends with the process.
        """
        results: list[T] = []
        errors: list[BaseException] = []
        has_ended = threading.Event()

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)
            has_ended.set()

        threading.Thread(target=run, daemon=True).start()
        left = OPERATION_SECONDS_MAX
        while not has_ended.wait(left):
            operation = self._operation
            left = seconds_left(operation, time.monotonic())
            if operation is not None and left <= 0:
                raise CommandFailed(
                    f"{operation.path} does not answer: the disk has not finished an operation for "
                    f"{OPERATION_SECONDS_MAX:g} seconds. See that the disk works and is mounted, then try again."
                )
        for error in errors:
            raise error
        return results[0]
