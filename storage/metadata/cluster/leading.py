"""What links need of the process that leads: the one that decides the writes and appends to the log."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from storage.metadata.batches import Point
from storage.metadata.cluster.messages import Place
from storage.metadata.image import Image
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.proposed import Proposed
from storage.metadata.snapshots import View
from storage.metadata.store import Committed


class Appended(Protocol):
    """Batches that were appended together. They are durable and count."""

    @property
    def data(self) -> bytes:
        """The batches with their headers, as in the file."""

    @property
    def offset(self) -> int:
        """Where they are in the file."""


class LinkFeed(Protocol):
    """One link, for the committer."""

    def batches(self, appended: Appended) -> None:
        """Take batches that have become visible, or the durable pieces of a large change set. Never waits or raises."""


class Leader(Protocol):
    """A reign, from its take-over to its end. After the end, every call raises StoreUnavailable."""

    @property
    def epoch(self) -> int:
        """The epoch of the log that it writes."""

    @property
    def image(self) -> Image:
        """The image that it decides on."""

    @property
    def point(self) -> Point:
        """The last durable batch that counts. Feeds may not have it yet."""

    async def propose(self, proposed: Proposed) -> Committed:
        """Decide it. See `MetadataStore.commit`."""

    async def propose_once(self, proposed: Proposed, write: WriteId, *, along: bool = False) -> Made | None:
        """Decide a numbered write once, however often it is proposed. None: its writer has the answer.

        Calls for the same write share one decision. Cancelling a call cancels no decision.

        Raises:
            Conflict, SessionLost, StoreFull: it is refused.
            LinkError: its number is wrong.
            StoreUnavailable: the outcome is unknown.
        """

    def require_reigning(self) -> None:
        """Look whether another process has taken over. Raises Deposed if so."""

    async def attach(self, feed: LinkFeed) -> Place:
        """From here on, feed it what comes behind the returned place. The image is at that place when it returns."""

    def detach(self, feed: LinkFeed) -> None:
        """Feed it no more."""

    def log_behind(self, place: Place) -> Sequence[Appended] | None:
        """The log from a place to the end, in the step in which `attach` returned; None if it is too long ago.

        Raises:
            OffChain: the log does not hold that place.
        """

    def view(self) -> AbstractContextManager[View]:
        """The image as it is now, to be read while it changes."""
