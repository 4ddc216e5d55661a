"""The store of a controller on a simulated disk, for followers to join.

async with led() as reign:
    reign.ring_bytes = 0        # the next append leaves followers nothing but the image
    reign.disk.stop()           # what is written stays undecided until `reign.disk.resume()`
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from storage.metadata.batches import Point
from storage.metadata.cluster.publication import RECENT_BYTES_MAX
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.image import Image
from storage.metadata.take_over import Started
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DIRECTORY
from tests.support.reigns import take_over_at


class LedStore(EmbeddedStore):
    """See the module's docstring."""

    def __init__(self, disk: SimulatedFiles, started: Started) -> None:
        super().__init__(disk, DIRECTORY, started, recent_bytes_max=RECENT_BYTES_MAX)
        self.disk = disk

    @property
    def image(self) -> Image:
        """The image that it decides on."""
        return self.reign.image

    @property
    def point(self) -> Point:
        """The last batch that counts."""
        return self.reign.point

    @property
    def ring_bytes(self) -> int:
        """How much of the log it keeps for followers."""
        return self.reign._public._recent._bytes_max

    @ring_bytes.setter
    def ring_bytes(self, size: int) -> None:
        self.reign._public._recent._bytes_max = size


@asynccontextmanager
async def led() -> AsyncIterator[LedStore]:
    """Take over on a new disk, and decide while the context is open."""
    disk = SimulatedFiles(seed=1)
    started = take_over_at(disk)
    store = LedStore(disk, started)
    try:
        async with store.leading():
            yield store
    finally:
        disk.resume()
        started.close()
