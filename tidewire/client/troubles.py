"""The troubles of a client, or of one producer, which any task can wait for."""

import anyio

from tidewire.client.waking import Changes
from tidewire.protocol.troubles import Trouble, Troubles


class ShownTroubles(Troubles):
    """What keeps the work from going on at the moment.

    `current` is None while all goes well. Otherwise its `error` says why the client retries, such as `BrokerFull` or
    `ConnectFailed`, and its `since_seconds` says since when, on the event loop's clock.
    """

    def __init__(self, *, whole: Troubles | None = None) -> None:
        """As `Troubles`."""
        self._changes = Changes()
        super().__init__(anyio.current_time, self._changes.notify, whole=whole)

    async def change(self, known: Trouble | None) -> Trouble | None:
        """The current trouble, once it is another one than `known`. Begin with None, then pass what it returned."""
        while self.current is known:
            await self._changes.wait()
        return self.current
