"""Waiting between attempts: the delays of `tidewire.protocol.backoff`, slept through.

This is the one place where the client watches the clock.
"""

import anyio

from tidewire.protocol import backoff


class Backoff(backoff.Backoff):
    """The delays of one series of attempts; `reset` after a success."""

    __slots__ = ()

    async def wait(self) -> None:
        """Sleep for the next delay."""
        await anyio.sleep(self.next_delay_seconds())
