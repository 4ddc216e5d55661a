"""The metadata store without a log: the image alone, for tests and for trying things out. Nothing survives it."""

from collections.abc import Callable
from typing import TypeVar

import trio

from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.image_store import ImageStore

T = TypeVar("T")


class MemoryStore(ImageStore):
    """Needs no task and no closing: `MemoryStore()` is ready, and every call answers after one checkpoint.

    What other stores call durable is here as lasting as the process.
    """

    def __init__(self) -> None:
        super().__init__(Image())

    async def _decide(self, decide: Callable[[Delta], T], size: int) -> T:
        await trio.lowlevel.checkpoint()
        delta = Delta(self._image)
        result = decide(delta)
        for change_set in delta.change_sets:
            self._show(change_set)
        return result
