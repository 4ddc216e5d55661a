"""What administrators may ask of a broker. HTTP serves this contract, so it can be tested without a broker.

For the metadata store HTTP uses the store's own contract (`storage.metadata.store`), which has implementations enough
to test with, and alone can answer for as long as its client listens.

Left out on purpose: namespaces are not asked about, since any legal one exists (there is nothing to create first); and
nothing here streams, so an answer is always one value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.layouts.autoscale_policy import AutoScaleOverride
from broker.layouts.layout import Layout
from broker.layouts.parts import SubscriptionKind
from broker.loop_monitor import LoopStatistics
from broker.names import TopicName


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription of a topic, over all its segments."""

    kind: SubscriptionKind
    consumers: int
    """Connected now."""
    backlog_entries: int
    """Readable and not acknowledged; a batch counts as one, as in Pulsar's `msgBacklog`."""


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """One scalable topic, at a moment."""

    layout: Layout
    subscriptions: Mapping[str, SubscriptionStatistics] = field(default_factory=dict)


class TopicService(Protocol):
    """Administration of scalable topics. Every `name` is a `topic://` name, unless said otherwise.

    Whatever a method changed is durable when it returns. Besides the errors named, any may raise `TopicClosed` and
    the metadata store's `StoreUnavailable`. A method may be cancelled, when the broker stops or the connection has
    lasted too long: then it happened, did not, or goes on by itself.
    """

    async def create_topic(self, name: TopicName, *, segments: int | None, properties: Mapping[str, str]) -> None:
        """Create a topic; `segments` None means as many as the broker's settings say.

        Raises:
            TopicExists, SegmentCountInvalid, LayoutTooLarge
        """

    async def layout(self, name: TopicName) -> Layout:
        """The topic's layout now.

        Raises:
            TopicNotFound
        """

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic, its segments and its subscriptions; `force` disconnects who uses it.

        Raises:
            TopicNotFound, TopicInUse
        """

    async def split(self, name: TopicName, segment_id: int) -> None:
        """Split a segment; returns when the children take messages.

        Raises:
            TopicNotFound, UnknownSegment, NotActive, TooNarrow, IntentOpen, LayoutTooLarge
        """

    async def merge(self, name: TopicName, first_id: int, second_id: int) -> None:
        """Merge two segments; returns when the child takes messages.

        Raises:
            TopicNotFound, UnknownSegment, NotActive, NotAdjacent, IntentOpen, LayoutTooLarge, NotSupported
        """

    async def migrate(self, name: TopicName, *, force: bool) -> None:
        """Make a scalable topic of the `persistent://` topic of this name, for good; its clients follow or are closed.

        Raises:
            TopicNotFound: there is no such `persistent://` topic.
            TopicExists: it is scalable already.
            OldClientsConnected: clients are connected that will not follow, and `force` was not given.
        """

    async def create_subscription(self, name: TopicName, subscription: str, kind: SubscriptionKind) -> None:
        """Make sure that the topic has this subscription; a new one begins with the first message there is.

        Raises:
            TopicNotFound, SubscriptionExists (one of the other kind), SubscriptionEnding, LayoutTooLarge
        """

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        """Delete a subscription of the topic; its consumers are disconnected.

        Raises:
            TopicNotFound, SubscriptionNotFound
        """

    async def seek(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        """Let a subscription of a topic, or of one segment, go on with what was published at this time or later.

        Raises:
            TopicNotFound, SubscriptionNotFound
        """

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        """Let a subscription of a topic, or of one segment, go on behind everything that is readable now.

        Raises:
            TopicNotFound, SubscriptionNotFound
        """

    async def segment_backlog(self, name: TopicName, subscription: str) -> int:
        """How many entries of a segment the subscription has not acknowledged.

        Raises:
            TopicNotFound, SubscriptionNotFound
        """

    async def auto_scale(self, name: TopicName) -> AutoScaleOverride | None:
        """What the topic sets for itself of the policy for automatic splits and merges.

        Raises:
            TopicNotFound
        """

    async def set_auto_scale(self, name: TopicName, override: AutoScaleOverride | None) -> None:
        """Replace what the topic sets for itself; None leaves everything to the broker's settings.

        Raises:
            TopicNotFound, AutoScalePolicyInvalid, LayoutTooLarge
        """

    async def topics(self, tenant: str, namespace: str, properties: Mapping[str, str]) -> Sequence[TopicName]:
        """The scalable topics of a namespace that have all these properties, in any order."""

    async def statistics(self, name: TopicName) -> TopicStatistics:
        """How the topic is doing.

        Raises:
            TopicNotFound
        """


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """Counters of this broker's transactions since it started, and what is open now (T34)."""

    op_writes: int = 0
    header_cas_ok: int = 0
    header_cas_conflict: int = 0
    header_cas_reject: int = 0
    index_queries: int = 0
    index_query_seconds: float = 0.0
    """Time spent in all `index_queries` together."""
    op_records_outstanding: int = 0
    """Op records of this broker's segments that are not applied yet."""


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What `/metrics` shows. Counters never fall while the process lives, though topics come and go."""

    connections: int = 0
    topics: int = 0
    """Loaded topics: segments and `persistent://` ones."""
    subscriptions: int = 0
    producers: int = 0
    consumers: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    received_bytes: int = 0
    """Held for clients: what they sent and no ledger has yet."""
    unread_bytes: int = 0
    """Held for clients: what they have not read."""
    metadata_revision: int = 0
    transactions: TransactionStatistics = TransactionStatistics()
    loop: LoopStatistics = field(default_factory=LoopStatistics)


class BrokerMonitor(Protocol):
    """How the broker as a whole is doing. Both methods answer at once, from memory."""

    def statistics(self) -> BrokerStatistics:
        """Counters at this moment."""

    def problem(self) -> str | None:
        """Why this broker cannot serve, in a sentence; None while it can."""
