"""Long work beside others: one event loop serves every client, so nothing may hold it (E7)."""

from typing import TypeVar

import trio

from storage.metadata.steps import Steps

T = TypeVar("T")


async def paced(steps: Steps[T]) -> T:
    """The work's result, with a pause behind each step but the last; work of one step waits for nobody."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()
