"""Group commit: a short wait in the event loop lets ready tasks join, which saves writes, syncs and thread switches."""

from typing import Final

import trio

TURNS: Final = 2
"""Of the scheduler: in the first a request that was read reaches its task, in the second that asks for its write."""


async def let_others_join() -> None:
    """Let the tasks that are ready run, and those that they wake; not cancelled, and at once when there are none.

    Under load a group is larger by what would else have waited for the next; alone, a writer waits some microseconds.
    """
    for _turn in range(TURNS):
        await trio.lowlevel.cancel_shielded_checkpoint()
