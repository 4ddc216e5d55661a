"""Waiting between attempts: sleeps for the delays of `tidewire.protocol.backoff`."""

import anyio

from tidewire.protocol import backoff


class Backoff(backoff.Backoff):
    """The delays of one series of attempts; `reset` after a success."""

    __slots__ = ()

    async def wait(self) -> None:
        """Sleep for the next delay."""
        await anyio.sleep(self.next_delay_seconds())
