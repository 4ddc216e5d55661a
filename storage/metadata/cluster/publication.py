"""What a controller has appended becomes visible: first in this process, then at the links of its followers.

A follower must not be ahead of the reads here. So an append is pushed in the step in which the last of its change sets
is shown. It comes before the answers, so a follower's image holds what an answer says. Pieces of a transaction are
pushed at once, because no follower shows them before the end.

A follower that begins here gets the log behind its place, or a view of the image. Both belong to a moment between two
groups of the committer. Then the image is exactly at the last batch, and no transaction is open.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import trio

from storage.metadata import snapshots
from storage.metadata.batches import Point
from storage.metadata.cluster.recent_log import RecentLog
from storage.metadata.image import Written
from storage.metadata.log import Appended
from storage.metadata.records import DataRecord
from storage.metadata.steps import KEYS_AT_ONCE
from storage.metadata.take_over import Started

RECENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""How much of the log a controller with followers keeps in memory, for a link that was cut."""

Show = Callable[[Sequence[DataRecord], Callable[[list[Written]], None]], Awaitable[None]]
"""`ImageStore.show`: makes a durable change set visible in this process."""


class LinkFeed(Protocol):
    """One link to a follower."""

    def batches(self, appended: Appended) -> None:
        """Take batches that follow those of the call before. Never blocks or raises."""


class Publication:
    """What is visible of one reign. `recent_bytes_max` bounds what `log_behind` can give."""

    def __init__(self, show: Show, started: Started, recent_bytes_max: int) -> None:
        self._show = show
        self.image = started.image
        """The state, which `show` changes."""
        self.point = started.log.point
        """The last batch whose change sets are shown, or are just being shown.

        Everything that anybody has seen of this store is at or below it. So a follower that holds it may answer a read.
        """
        self._links: dict[LinkFeed, None] = {}
        if started.first.last == self.point:
            # Whoever followed the controller before is likely to be right before this batch.
            self._recent = RecentLog(started.first.after, recent_bytes_max)
            self._recent.add(started.first)
        else:
            self._recent = RecentLog(self.point, recent_bytes_max)
        self._views: list[snapshots.View] = []
        """The states that are being written down or sent, while the image goes on."""
        self._is_changing = False
        self._between = trio.lowlevel.ParkingLot()

    async def publish(self, change_sets: Sequence[Sequence[DataRecord]], appended: Appended) -> None:
        """Show these change sets, and push what was appended for them."""
        self.point = appended.last
        shown = 0
        for change_set in change_sets:
            if shown >= KEYS_AT_ONCE:
                # Readers may read between two change sets.
                await trio.lowlevel.checkpoint()
                shown = 0
            await self._show(change_set, self._note)
            shown += len(change_set)
        self.push(appended)

    def push(self, appended: Appended) -> None:
        """Push a piece of a transaction, which shows nothing yet."""
        self._recent.add(appended)
        for link in self._links:
            link.batches(appended)

    def change_begins(self) -> None:
        """The committer begins a group."""
        self._is_changing = True

    def change_ends(self) -> None:
        """The group is published, or the reign has ended."""
        self._is_changing = False
        if self._between:
            self._between.unpark_all()

    async def wait_between(self) -> None:
        """Return between two groups: until the caller's next pause, image and log stay as they are."""
        await trio.lowlevel.checkpoint()
        while self._is_changing:
            await self._between.park()

    def attach(self, link: LinkFeed) -> None:
        """Push to this link from now on."""
        self._links[link] = None

    def detach(self, link: LinkFeed) -> None:
        """Push to it no more. Idempotent."""
        self._links.pop(link, None)

    def log_behind(self, place: Point) -> list[Appended] | None:
        """See `RecentLog.behind`."""
        return self._recent.behind(place)

    def open_view(self, *, feature_level: int | None = None) -> snapshots.View:
        """The image of this moment, between two groups, to be read while it goes on. The caller closes it."""
        assert not self._is_changing, "it would be of no place in the log"
        view = snapshots.View(self.image, self.point, feature_level=feature_level)
        self._views.append(view)
        return view

    def close_view(self, view: snapshots.View) -> None:
        """It is not read any more."""
        self._views.remove(view)

    def _note(self, written: list[Written]) -> None:
        for view in self._views:
            view.note(written)
