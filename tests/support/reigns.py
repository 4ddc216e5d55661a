"""Processes that decide for one metadata folder, one after another, on a simulated disk.

    async with leading(disk) as first:
        await first.put("/a", b"")
        successor = take_over_at(disk.process())         # `first` is deposed from now on, and does not know it yet
        async with leading_on(disk, successor) as second:
            ...

A `Follower` is attached to a reign. It holds the image that the pushed batches make, and a history of what was pushed.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from storage.metadata.batches import Batch, Point, read_batches
from storage.metadata.cluster.messages import Place
from storage.metadata.cluster.publication import RECENT_BYTES_MAX
from storage.metadata.cluster.reign import Reign
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.epochs import MetadataEpochs
from storage.metadata.image import Image
from storage.metadata.log import Appended
from storage.metadata.replay import Replay
from storage.metadata.take_over import Started, take_over
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DIRECTORY


def take_over_at(files: SimulatedFiles, broker: str = "b") -> Started:
    """Take the next epoch as a process that has no image yet."""
    files.make_dir(DIRECTORY)
    epochs = MetadataEpochs(files, DIRECTORY, random.Random(1).getrandbits)
    return take_over(files, DIRECTORY, epochs, broker=broker, address="here")


@asynccontextmanager
async def leading_on(files: SimulatedFiles, started: Started) -> AsyncIterator[EmbeddedStore]:
    """Open the store of the process that has taken over."""
    store = EmbeddedStore(files, DIRECTORY, started, recent_bytes_max=RECENT_BYTES_MAX)
    try:
        async with store.leading():
            yield store
    finally:
        started.close()


@asynccontextmanager
async def leading(files: SimulatedFiles) -> AsyncIterator[EmbeddedStore]:
    """Take over, and open the store."""
    async with leading_on(files, take_over_at(files)) as store:
        yield store


class Successor:
    """Takes over before one operation of another process: at the first to which `left` counts down."""

    def __init__(self, deposed: SimulatedFiles, left: int) -> None:
        self._files = deposed.process()
        self._left = left
        self.started: Started | None = None
        deposed.before = self._before

    def _before(self, _operation: str, _path: Path) -> None:
        if self._left == 0:
            self.started = take_over_at(self._files)
        self._left -= 1


class Follower:
    """See the module's docstring."""

    def __init__(self, image: Image, point: Point) -> None:
        self.replay = Replay(image)
        self.point = point
        """The last batch that it has."""
        self.pushed: list[Appended] = []
        self.controller: Image | None = None
        """The image of its controller, which it may never be ahead of."""

    @classmethod
    async def of(cls, reign: Reign) -> "Follower":
        """Begin with the whole image."""
        image = Image()
        follower = cls(image, Point(0, 0))
        follower.point = (await reign.attach(follower)).point
        with reign.view() as view:
            image.load(view.head)
            while records := view.next(100):
                image.load(records)
        image.revision = view.revision
        follower.replay = Replay(image)
        follower.controller = reign.image
        return follower

    async def attach_again(self, reign: Reign) -> bool:
        """Go on from its place by the log. Return False if the log is not kept that far."""
        await reign.attach(self)
        behind = reign.log_behind(Place(0, self.point, self.replay.image.revision))
        if behind is None:
            reign.detach(self)
            return False
        for appended in behind:
            self._read(appended)
        return True

    def batches(self, appended: Appended) -> None:
        """See `LinkFeed`."""
        self.pushed.append(appended)
        self._read(appended)
        assert self.controller is None or self.replay.image.revision <= self.controller.revision

    def _read(self, appended: Appended) -> None:
        assert appended.after == self.point
        for batch in read_batches(appended.data, self.point, begin=appended.offset):
            assert isinstance(batch, Batch)
            self.replay.batch(batch.body)
            self.point = batch.point
        assert self.point == appended.last


def state_of(image: Image) -> object:
    """Return everything that an image says, as one comparable value."""
    return (
        image.revision,
        image.sequence,
        image.scan("", "\U0010ffff", None),
        {session: (live.timeout_ms, list(live.keys), live.nonce) for session, live in image.sessions.items()},
        list(image.outcomes.each()),
        image.epoch,
    )
