"""The operations that administrators may request. HTTP serves this contract, so it can be tested without a broker.

For the metadata store, HTTP uses the store's own contract (`storage.metadata.store`). That one has enough
implementations to test with, and only it can stream an answer.

One thing is left out on purpose. Nothing here streams: an answer is always one value.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from broker.layouts.autoscale_policy import AutoScaleOverride
from broker.layouts.layout import Layout
from broker.layouts.parts import SubscriptionKind
from broker.log_statistics import GroupStatistics, LogStatistics
from broker.loop_monitor import LoopStatistics
from broker.names import TopicName
from broker.peek_contract import PeekService
from broker.regular_contract import RegularService
from broker.schema_contract import SchemaService
from broker.series import Series
from broker.tracing.spans import Counts as SpanCounts
from txn.inspection import Inspection


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription of a topic, over all its segments."""

    kind: SubscriptionKind
    consumers: int
    """Consumers connected now."""
    backlog_entries: int
    """Readable entries with messages that are not acknowledged. A batch counts as one, as in Pulsar's `msgBacklog`."""


class MigrationAsked(NamedTuple):
    """What a controller asks a regular topic's owner to migrate, and as what."""

    claim: int
    """The version of its claim as the controller."""
    creation_id: str
    """That of the regular topic."""


class SegmentUsers(NamedTuple):
    """Who is connected to one segment."""

    clients: int
    """Producers, consumers and readers."""
    subscriptions: frozenset[str]
    """The subscriptions that have consumers."""


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """Numbers about one scalable topic at one moment."""

    layout: Layout
    subscriptions: Mapping[str, SubscriptionStatistics] = field(default_factory=dict)
    groups: Mapping[str, GroupStatistics] = field(default_factory=dict)
    segments: Mapping[int, LogStatistics] = field(default_factory=dict)
    """By the numbers of the segments."""


class TopicService(Protocol):
    """Administration of scalable topics. Every `name` is a `topic://` name, unless said otherwise.

    When a method returns, its change is durable. Besides the errors named, every method may raise `TopicClosed` and the
    metadata store's `StoreUnavailable`. A method is cancelled when the broker stops or the connection has lasted too
    long. The change then has happened, has not, or is completed later by the broker.
    """

    @property
    def transactions(self) -> Inspection:
        """What administrators may ask about transactions."""

    @property
    def regular(self) -> RegularService:
        """Administration of regular topics."""

    @property
    def schemas(self) -> SchemaService:
        """Administration of the schemas of both kinds of topics."""

    @property
    def messages(self) -> PeekService:
        """Looks at single messages of both kinds of topics."""

    async def create_topic(self, name: TopicName, *, segments: int | None, properties: Mapping[str, str]) -> None:
        """Create a topic. If `segments` is None, the broker's settings say how many it has.

        Raises:
            TopicExists, SegmentCountInvalid, LayoutTooLarge
        """

    async def layout(self, name: TopicName) -> Layout:
        """Return the topic's current layout.

        Raises:
            TopicNotFound
        """

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic, its segments and its subscriptions; `force` disconnects its clients.

        Raises:
            TopicNotFound, TopicInUse
        """

    async def split(self, name: TopicName, segment_id: int) -> None:
        """Split a segment. The children take messages on return.

        Raises:
            TopicNotFound, UnknownSegment, NotActive, TooNarrow, IntentOpen, LayoutTooLarge
        """

    async def merge(self, name: TopicName, first_id: int, second_id: int, *, allow_fewer: bool = True) -> None:
        """Merge two segments. The child takes messages on return.

        Raises:
            FewerThanAsked: fewer segments than the topic is to have would be left, and `allow_fewer` is false.
            TopicNotFound, UnknownSegment, NotActive, NotAdjacent, IntentOpen, LayoutTooLarge, NotSupported
        """

    async def migrate(self, name: TopicName, *, force: bool) -> None:
        """Turn a `persistent://` topic into a scalable one. This cannot be undone.

        Clients that know scalable topics follow the topic; `force` disconnects the others.

        Raises:
            TopicNotFound: there is no such `persistent://` topic.
            TopicExists: it is scalable already.
            OldClientsConnected: clients are connected that cannot follow, and `force` was not given.
            TransactionsOpen: transactions of Kafka's clients are open there.
        """

    async def begin_migration(self, name: TopicName, asked: MigrationAsked, *, force: bool) -> None:
        """Write the first layout of a `persistent://` topic that this broker owns, for the topic's controller.

        Raises:
            OwnedElsewhere: this broker does not own it, or whoever asked is not the controller any more.
            TopicNotFound, TopicExists, OldClientsConnected: see `migrate`. Or the topic is not the one that was meant.
        """

    async def create_subscription(self, name: TopicName, subscription: str, kind: SubscriptionKind) -> None:
        """Create a subscription if the topic lacks it. A new one begins with the earliest message.

        Raises:
            TopicNotFound, SubscriptionExists (one of the other kind), SubscriptionEnding, LayoutTooLarge
        """

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        """Delete a subscription of the topic, and disconnect its consumers.

        Raises:
            TopicNotFound, SubscriptionNotFound
        """

    async def seek(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        """Move a subscription of a topic or a segment to the first message published at this time or later.

        Raises:
            TopicNotFound, SubscriptionNotFound
        """

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        """Move a subscription of a topic or a segment past everything that is readable now.

        Raises:
            TopicNotFound, SubscriptionNotFound
        """

    async def segment_backlog(self, name: TopicName, subscription: str) -> int:
        """Count the entries of a segment that the subscription has not acknowledged.

        Raises:
            TopicNotFound, SubscriptionNotFound
        """

    async def log_statistics(self, name: TopicName, indexes: Collection[int] = ()) -> LogStatistics:
        """Return the statistics of a segment, or of a `persistent://` topic without its partitions.

        They say how many messages are left from each of these indexes.

        Raises:
            TopicNotFound
        """

    async def segment_is_untouched(self, name: TopicName) -> bool:
        """Return whether nothing was produced on a segment, and only consumers that take any schema are connected.

        Raises:
            TopicNotFound
        """

    async def segment_users(self, name: TopicName) -> SegmentUsers:
        """Return who is connected to a segment that this broker serves. It loads nothing.

        Raises:
            OwnedElsewhere: this broker does not serve it.
        """

    async def auto_scale(self, name: TopicName) -> AutoScaleOverride | None:
        """Return the topic's own settings for automatic splits and merges, if it has any.

        Raises:
            TopicNotFound
        """

    async def set_auto_scale(self, name: TopicName, override: AutoScaleOverride | None) -> None:
        """Replace the topic's own settings for automatic splits and merges. None removes them.

        Raises:
            TopicNotFound, AutoScalePolicyInvalid, LayoutTooLarge
        """

    async def topics(self, tenant: str, namespace: str, properties: Mapping[str, str]) -> Sequence[TopicName]:
        """Return the scalable topics of a namespace that have all these properties, in any order."""

    async def statistics(self, name: TopicName) -> TopicStatistics:
        """Return the topic's statistics.

        Raises:
            TopicNotFound
        """


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """Counters of this broker's transactions since its start, and its outstanding op records (T34)."""

    op_writes: int = 0
    header_cas_ok: int = 0
    header_cas_conflict: int = 0
    header_cas_reject: int = 0
    index_queries: int = 0
    index_query_seconds: float = 0.0
    """The total time of all `index_queries`."""
    op_records_outstanding: int = 0
    """Op records of this broker's segments that are not applied yet."""


class LatencyCounts(NamedTuple):
    """Durations that were counted (`storage.histogram`)."""

    counts: tuple[int, ...] = ()
    """How many there were for each bucket, not cumulative; empty if nobody counts them."""
    sum_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """What `/metrics` shows. A counter never falls while the process lives, even if topics are unloaded."""

    connections: int = 0
    topics: int = 0
    """Loaded topics: segments and `persistent://` topics."""
    subscriptions: int = 0
    producers: int = 0
    consumers: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    unconvertible: Mapping[str, int] = field(default_factory=dict)
    """Reads of entries that cannot be converted, by the protocol of the consumers that do not get them."""
    received_bytes: int = 0
    """Bytes in memory that clients have sent and no ledger has yet."""
    unread_bytes: int = 0
    """Bytes in memory that clients have not read yet."""
    received_bytes_max: int = 0
    unread_bytes_max: int = 0
    memory_waiting: int = 0
    """Connections that wait for room in memory for what their clients send."""
    connections_max: int = 0
    metadata_revision: int = 0
    metadata_writes_waiting: int = 0
    metadata_epoch: int | None = None
    """None with a store that has no epochs."""
    members: int = 1
    """Brokers that run, this one included."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """How much it owns, by kind (`broker.cluster.overview.KINDS`)."""
    latencies: Mapping[tuple[str, str], LatencyCounts] = field(default_factory=dict)
    """By what was timed (a field of `broker.traffic.Latencies`), and the client's protocol."""
    transactions: TransactionStatistics = TransactionStatistics()
    loop: LoopStatistics = field(default_factory=LoopStatistics)
    spans: SpanCounts | None = None
    """None if the broker does not trace."""


class PeerAnswer(NamedTuple):
    """What another broker answered."""

    status_code: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """The fields that a client needs, with their names as they were written: the body's type, and fields of our own."""


NextPiece = Callable[[], Awaitable[bytes | None]]
"""Waits for the next line of a stream; None at its end."""


class ClusterService(Protocol):
    """What administrators may ask any broker about ownership. It passes the request on to the broker that has to act.

    `forwarded` says that another broker has passed it on already. Then it goes no further.

    Every method that changes something may raise `PeerSilent` and `PeerRefused`, with the words of the broker that was
    asked.
    """

    @property
    def broker_id(self) -> str:
        """The id of this broker."""

    async def ask_others(self, target: str, *, seconds_max: float, bytes_max: int) -> Mapping[str, PeerAnswer | None]:
        """Send `GET target` to all other brokers at once. Return their answers by id; None for silence.

        Instead of an answer with more than `bytes_max` bytes, there is a refusal.
        """

    def follow(self, broker: str, target: str) -> AbstractAsyncContextManager[NextPiece]:
        """Ask another broker for a stream of JSON lines.

        Raises:
            PeerSilent: it does not answer, it refuses, or the stream is lost. So does the function.
        """

    async def move(self, name: TopicName, to: str, *, forwarded: bool = False) -> None:
        """Hand a topic over to the broker `to`. For a `topic://` name, hand over all its segments.

        On return its owner has released it, and `to` takes it. A topic without owner is taken by `to`.

        Raises:
            NoSuchBroker, NotOwned, TopicNotFound
        """

    async def unload(self, name: TopicName, *, forwarded: bool = False) -> None:
        """Let the owner of a topic release it. The next lookup decides which broker loads it again."""

    async def drain(self, broker: str, *, forwarded: bool = False) -> None:
        """Let a broker hand over everything that it owns, and take nothing new.

        Raises:
            NoSuchBroker: no other broker takes topics.
        """

    async def undrain(self, broker: str, *, forwarded: bool = False) -> None:
        """Let a broker take topics again."""

    async def balance(self, broker: str, *, forwarded: bool = False) -> int:
        """Let a broker hand over the topics that belong to others by now (`HandOver.balance`). Return how many."""

    async def examine(self) -> dict[str, Any]:
        """Look for what is wrong with the cluster. Return `broker.doctor.report.Report` as JSON.

        It takes some seconds if something seems to be wrong, and longer if the metadata store does not answer.
        """

    def tell(self) -> dict[str, Any]:
        """Return what this broker says of itself to the doctor of another one, as JSON."""

    def taker(self, name: str) -> str | None:
        """Return the id of the other broker that should own `name`, which nobody owns; None if none takes topics."""

    async def pass_on(self, owner: str, method: str, target: str, body: bytes) -> PeerAnswer:
        """Send a client's request to the broker `owner`, which has to act. Return its answer, a refusal too.

        Raises:
            PeerSilent: it did not answer. It may have done what it was asked.
        """

    def take_reports(self, content: Mapping[str, object]) -> None:
        """Take what another broker reports about consumers of segments (`broker.consumer_reports`).

        Raises:
            InvalidReports: it cannot be understood, and nothing was done.
        """


class BrokerMonitor(Protocol):
    """The state of the whole broker."""

    def statistics(self) -> BrokerStatistics:
        """Return the current counters, at once."""

    async def series(self) -> Series:
        """Return what topics, subscriptions and groups have, in small steps of the event loop.

        Without an answer of the metadata store, groups are missing.
        """

    def problem(self) -> str | None:
        """Say at once why this broker cannot serve, and what to do about it; None while it can serve."""
