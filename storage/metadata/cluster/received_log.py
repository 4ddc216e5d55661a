"""What a follower makes of the log that its controller pushes: it shows complete change sets, in order.

Each batch continues the checksum of the one before it, so the follower checks the chain as recovery does. A large
change set is kept until its End and then shown in one step for readers (R16). An abort forgets it. The *place* is the
last batch that the image holds with all that was begun before. A new link continues from there, so the pieces of an
unfinished change set come again.

| pushed                                     | meaning                                                     |
|--------------------------------------------|-------------------------------------------------------------|
| a batch at or below the last one           | it was pushed before: skipped                               |
| the batch that follows the last one, whole | its complete change sets are shown                          |
| any other batch                            | the link ends, and the next one brings what is missing      |
| a batch whose records make no sense        | the store ends: this release cannot follow, or has a defect |
| a part of an image                         | see `image_transfer`                                        |
| an image of a lower revision               | the store ends: this process has shown what is not recorded |
"""

import trio

from storage.metadata.batches import Batch, Point, link_at, read_batches
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.image_transfer import Difference, FirstImage
from storage.metadata.cluster.messages import ImagePart, Place, PushedBatch, Start
from storage.metadata.cluster.pushed_change_sets import PushedChangeSets
from storage.metadata.image import Image, Written
from storage.metadata.image_store import ImageStore
from storage.metadata.outcomes import ContradictedOutcome
from storage.metadata.pacing import paced
from storage.metadata.record_codec import CorruptRecord
from storage.metadata.records import DataRecord
from storage.metadata.steps import KEYS_AT_ONCE
from storage.metadata.store import MetadataError


class CannotFollow(MetadataError):
    """This process's image cannot be continued from the log. Its store must end. A restart reads the log anew."""


class ReceivedLog:
    """The image of a follower, and how far it is."""

    def __init__(self, store: ImageStore, image: Image, place: Place) -> None:
        self.place = place
        """How far the image is."""
        self.images = 0
        """How many whole images were taken."""
        self._store = store
        self._image = image
        self.last: Point = place.point
        """The last batch that was received. The image holds every change set that is complete up to there."""
        self._change_sets = PushedChangeSets()
        self._arriving: FirstImage | Difference | None = None
        self._is_image_due = False

    def begin(self, start: Start) -> None:
        """A new link was welcomed. Unfinished pieces and parts of the earlier one are forgotten."""
        self.last = self.place.point
        self._change_sets = PushedChangeSets()
        self._arriving = None
        self._is_image_due = start is Start.IMAGE

    async def take_part(self, part: ImagePart) -> None:
        """Take a part of an image. After the last part, the image is like the controller's.

        Raises:
            LinkError: it was not announced, or cannot be read.
            CannotFollow: it is older than the own image.
        """
        if not self._is_image_due:
            raise LinkError("a part of an image was not announced")
        if part.place.revision < self._image.revision:
            raise CannotFollow(
                f"the metadata controller is at revision {part.place.revision}, this process at "
                f"{self._image.revision}: it has shown what the log does not hold"
            )
        if self._arriving is None:
            self._arriving = Difference(part.place, self._image) if self._image.revision else FirstImage(part.place)
        try:
            await paced(self._arriving.take(part.records))
        except (CorruptRecord, KeyError) as unreadable:
            raise LinkError(f"a part of an image cannot be read: {unreadable}") from unreadable
        if part.is_last:
            change_set = await self._finish(self._arriving)
            with trio.CancelScope(shield=True):
                await self._store.show(change_set, _note_nothing)
                self.place = part.place
            self.last = part.place.point
            self._arriving = None
            self._is_image_due = False
            self.images += 1

    async def _finish(self, arriving: FirstImage | Difference) -> list[DataRecord]:
        if isinstance(arriving, FirstImage) and not self._store.statistics().watches:
            arriving.give_to(self._image)
            return []
        return await paced(arriving.finish(self._image))

    async def take_image(self, found: Image, place: Place) -> None:
        """Take the state that this process has read from the log itself. `found` must not be used any more.

        Raises:
            CannotFollow: it is older than the own image.
        """
        if place.revision < self._image.revision:
            raise CannotFollow(
                f"the metadata log is at revision {place.revision}, this process at {self._image.revision}: it has "
                "shown what the log does not hold"
            )
        if not self._image.revision and not self._store.statistics().watches:
            self._image.adopt(found)
        else:
            difference = Difference(place, self._image, head=found)
            await paced(difference.compare_all(found))
            await self._show_all([await paced(difference.finish(self._image))])
        self.reached(place)
        self.images += 1

    async def take_change_sets(self, change_sets: list[list[DataRecord]], point: Point) -> None:
        """Show what this process has read from the log itself, from the own place up to `point`."""
        await self._show_all(change_sets)
        self.reached(Place(self._image.epoch, point, self._image.revision))

    def reached(self, place: Place) -> None:
        """The image is at this place. Unfinished pieces of an earlier link are forgotten."""
        self.place = place
        self.begin(Start.LOG)

    async def _show_all(self, change_sets: list[list[DataRecord]]) -> None:
        with trio.CancelScope(shield=True):
            for change_set in change_sets:
                await self._store.show(change_set, _note_nothing)
                await trio.lowlevel.checkpoint()

    async def take_batch(self, push: PushedBatch) -> None:
        """Take a batch, and show the change sets that it completes.

        Raises:
            LinkError: it does not follow the last one, or an image is due.
            CannotFollow: its records make no sense.
        """
        if self._is_image_due:
            raise LinkError("a batch came before the image that was announced")
        header = link_at(push.data)
        if header is not None and header.after.sequence <= self.last.sequence:
            return
        batch = next(read_batches(push.data, self.last, begin=push.offset), None)
        if not isinstance(batch, Batch) or batch.end != push.offset + len(push.data):
            reason = "it is empty" if batch is None else getattr(batch, "reason", "bytes follow it")
            raise LinkError(f"a pushed batch does not follow batch {self.last.sequence}: {reason}")
        # Shielded, because a batch that is shown in part would be shown again.
        with trio.CancelScope(shield=True):
            await self._show(batch)
        self.last = batch.point

    async def _show(self, batch: Batch) -> None:
        shown = 0
        try:
            for change_set in self._change_sets.take(batch.body):
                if shown >= KEYS_AT_ONCE:
                    await trio.lowlevel.checkpoint()
                    shown = 0
                await self._store.show(change_set, _note_nothing)
                shown += len(change_set)
        except (CorruptRecord, ContradictedOutcome, KeyError) as unreadable:
            raise CannotFollow(
                f"batch {batch.point.sequence} of the metadata log does not fit this process's state: {unreadable}"
            ) from unreadable
        if not self._change_sets.is_open:
            self.place = Place(self._image.epoch, batch.point, self._image.revision)


def _note_nothing(written: list[Written]) -> None:
    """A follower takes no snapshots."""
