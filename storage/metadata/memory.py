"""The metadata store without a log: the image alone, for tests and experiments. Nothing outlives the process."""

import trio

from storage.metadata.delta import Delta
from storage.metadata.image import Image, Written
from storage.metadata.image_store import ImageStore
from storage.metadata.pacing import paced
from storage.metadata.proposed import Proposed, decide
from storage.metadata.store import Committed


class MemoryStore(ImageStore):
    """Needs no task and no closing: `MemoryStore()` is ready, and calls answer after one checkpoint.

    Large change sets take more checkpoints, and other calls wait for them. What other stores make durable lasts as long
    as the process here.
    """

    def __init__(self) -> None:
        super().__init__(Image())
        self._deciding: trio.Event | None = None
        """While a change set is decided and shown: set when it is done."""

    async def _decide(self, proposed: Proposed) -> Committed:
        await trio.lowlevel.checkpoint()
        while self._deciding is not None:
            await self._deciding.wait()
        self._deciding = trio.Event()
        try:
            delta = Delta(self._image)
            committed = await paced(decide(proposed, delta))
            # Shielded, because a change set that is shown in part must be shown to its end.
            with trio.CancelScope(shield=True):
                for change_set in delta.change_sets:
                    await self.show(change_set, _note_nothing)
            return committed
        finally:
            self._deciding.set()
            self._deciding = None


def _note_nothing(written: list[Written]) -> None:
    """No snapshot is taken of this store."""
