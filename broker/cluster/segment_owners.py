"""Who owns the segments of a scalable topic: one metadata watch per followed topic, shared by all its followers.

Clients get the owners' addresses with a topic's layout. They look a segment up before they use it, so an address that
is some moments old costs them one more step. So many changes at once are told together, at most once a second. On a
broker that owns everything itself there is nothing to tell.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import structlog
import trio

from broker.cluster.ownership import ClaimUnreadable, claim_key, claimed_name, owner_in
from broker.followers import tell_all
from broker.names import Domain, InvalidTopicName, SegmentDescriptor, TopicName
from storage.metadata.store import Change, MetadataStore, Record, starting_with
from storage.signal import Signal

Follower = Callable[[], None]
"""Called when a segment of the topic has another owner. It must not block."""

Elsewhere = Mapping[SegmentDescriptor, str]
"""The URLs of the other brokers that own segments. A change makes a new object."""

TELL_SECONDS_MIN: Final = 1.0
"""The time between two changes that the followers of a topic are told of. A layout of 300 segments, whose owners all
come at once, has 50 KiB."""

_NOWHERE: Final[Elsewhere] = MappingProxyType({})

log = structlog.get_logger(__name__)


class _Feed:
    """One topic's owners, and its followers."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        self.elsewhere: Elsewhere = _NOWHERE
        """What the followers were told."""
        self.newest: dict[SegmentDescriptor, str] = {}
        self.known = trio.Event()
        self.changed = Signal()
        self.scope = trio.CancelScope()


class SegmentOwners:
    """The owners of the segments of those topics that this broker's clients follow."""

    def __init__(self, metadata: MetadataStore, nursery: trio.Nursery, *, me: str) -> None:
        """Set up.

        Args:
            metadata: the store of the claims.
            nursery: runs one task per followed topic.
            me: the id of this broker.
        """
        self._metadata = metadata
        self._nursery = nursery
        self._me = me
        self._feeds: dict[TopicName, _Feed] = {}

    async def follow(self, topic: TopicName, follower: Follower) -> None:
        """Call `follower` at each change until `unfollow`. On return, `elsewhere` knows the topic's owners.

        If it is cancelled, it follows nothing.
        """
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = _Feed()
            self._nursery.start_soon(self._run, topic, feed)
        feed.followers.add(follower)
        try:
            await feed.known.wait()
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self.unfollow(topic, follower)
            raise

    def unfollow(self, topic: TopicName, follower: Follower) -> None:
        """Undo `follow`. When the last follower leaves, the watch ends."""
        feed = self._feeds[topic]
        feed.followers.discard(follower)
        if not feed.followers:
            feed.scope.cancel()
            del self._feeds[topic]

    def elsewhere(self, topic: TopicName) -> Elsewhere:
        """Return the URLs of other brokers that own segments of a followed topic.

        Segments that are not in it belong to this broker, or to nobody. Those of regular topics are never in it.
        """
        feed = self._feeds.get(topic)
        return _NOWHERE if feed is None else feed.elsewhere

    async def _run(self, topic: TopicName, feed: _Feed) -> None:
        prefix = claim_key(str(topic).replace(f"{Domain.TOPIC}://", f"{Domain.SEGMENT}://", 1) + "/")
        with feed.scope:
            async with (
                self._metadata.watch_range(*starting_with(prefix)) as watch,
                trio.open_nursery() as nursery,
            ):
                self._hear(topic, feed, await watch.next())
                feed.elsewhere = dict(feed.newest) or _NOWHERE
                feed.known.set()
                nursery.start_soon(_tell, feed)
                async for change in watch:
                    self._hear(topic, feed, change)
                    feed.changed.set()

    def _hear(self, topic: TopicName, feed: _Feed, change: Change) -> None:
        for key in change.deleted:
            if (segment := _segment_of(topic, key)) is not None:
                feed.newest.pop(segment, None)
        for record in change.records:
            segment = _segment_of(topic, record.key)
            if segment is None:
                continue
            url = self._url_elsewhere(record)
            if url is None:
                feed.newest.pop(segment, None)
            else:
                feed.newest[segment] = url

    def _url_elsewhere(self, claim: Record) -> str | None:
        """Return the URL of the other broker that has the claim; None if it is this broker's, or damaged."""
        try:
            owner = owner_in(claim)
        except ClaimUnreadable as unreadable:
            log.error("a claim is damaged", key=claim.key, reason=str(unreadable))
            return None
        return None if owner.broker_id == self._me else owner.service_url


async def _tell(feed: _Feed) -> None:
    """Tell the followers of changes, and pause after each."""
    while True:
        await feed.changed.wait()
        if feed.newest == feed.elsewhere:
            continue
        feed.elsewhere = dict(feed.newest) or _NOWHERE
        await tell_all(feed.followers, lambda follower: follower())
        await trio.sleep(TELL_SECONDS_MIN)


def _segment_of(topic: TopicName, key: str) -> SegmentDescriptor | None:
    """Return the segment of `topic` whose claim has this key; None if it is the key of something else."""
    try:
        name = TopicName.parse(claimed_name(key))
    except InvalidTopicName:
        return None
    return name.segment if name.domain is Domain.SEGMENT and name.scalable_topic == topic else None
