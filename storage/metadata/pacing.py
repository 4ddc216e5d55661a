"""Long work beside other tasks. One event loop serves every client, so nothing may block it for long (E7)."""

from typing import TypeVar

import trio

from storage.metadata.steps import Steps

T = TypeVar("T")


async def paced(steps: Steps[T]) -> T:
    """The work's result, with a pause after each step but the last. Work of one step has no pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()
