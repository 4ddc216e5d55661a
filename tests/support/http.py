"""A small HTTP client on Trio, and a topic service that keeps its layouts in memory.

    answer = await request(address, "PUT", "/admin/v2/scalable/public/default/x", body=b"{}")
    assert answer.status == 204

The client opens a connection for each request, unless it is given one. `FakeTopics` implements the administration
contract without segments. Set `failure` to make its next call raise another error.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

import h11
import trio

from broker.addresses import Address
from broker.administration_contract import (
    BrokerStatistics,
    MigrationAsked,
    NextPiece,
    PeerAnswer,
    SegmentUsers,
    SubscriptionStatistics,
    TopicStatistics,
)
from broker.errors import (
    NotSupported,
    OldClientsConnected,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicExists,
    TopicInUse,
    TopicNotFound,
)
from broker.layouts.autoscale_policy import AutoScaleOverride, AutoScalePolicy
from broker.layouts.layout import Layout, create
from broker.layouts.legacy import migrated_layout
from broker.layouts.parts import LayoutSubscription, StartPosition, SubscriptionKind
from broker.log_statistics import GroupStatistics, LogStatistics, SegmentSubscription
from broker.names import TopicName
from broker.peek_contract import PeekService
from broker.peers import PeerSilent
from broker.regular_contract import RegularService
from broker.schema_contract import SchemaService
from broker.series import Series
from storage.metadata.memory import MemoryStore
from tests.support.layouts import NOW_MS
from txn.inspection import Inspection
from txn.transactions import Transactions, TransactionSettings

HEALTH = "/admin/v2/brokers/health"
LAYOUT = "/admin/v2/scalable/public/default/x"


@dataclass
class Answer:
    """The server's answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    names: frozenset[str] = frozenset()
    """The names of the header fields as the server wrote them; in `headers` they are in small letters."""

    @property
    def json(self) -> Any:
        """The body, which must be JSON with the JSON content type."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """The reason of a refusal."""
        assert list(self.json) == ["reason"]
        return str(self.json["reason"])


class HttpClientConnection:
    """A connection that carries one request after another."""

    def __init__(self, stream: trio.abc.Stream, host: str) -> None:
        self.stream = stream
        self._host = host
        self._http = h11.Connection(h11.CLIENT)

    async def request(
        self, method: str, target: str, *, body: bytes | None = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request and read the whole answer. If `body` is None, a body that the headers announce is not sent."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        fields = {"host": self._host, "content-length": str(len(body or b"")), **(headers or {})}
        sent = self._http.send(h11.Request(method=method, target=target, headers=list(fields.items())))
        if body is not None:
            sent += self._http.send(h11.Data(data=body)) + self._http.send(h11.EndOfMessage())
        await self.stream.send_all(sent)
        response, received = None, b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(bytes(await self.stream.receive_some()))
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                received += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert response is not None
                fields = {name.decode(): value.decode() for name, value in response.headers}
                names = frozenset(name.decode() for name, _value in response.headers.raw_items())
                return Answer(response.status_code, fields, received, names)
            else:
                raise AssertionError(f"the server closed the connection without an answer: {event}")


class LineReader:
    """Reads an answer of JSON lines, which may never end."""

    media_type = b"application/x-ndjson"

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._received = b""

    async def ask(self, server: Address, target: str) -> None:
        """Send the request. The answer must be 200."""
        head = h11.Request(method="GET", target=target, headers=[("host", str(server))])
        await self.stream.send_all((self._http.send(head) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        response = await self._event()
        assert isinstance(response, h11.Response)
        assert response.status_code == 200
        assert dict(response.headers.raw_items())[b"content-type"].startswith(self.media_type)

    async def line(self) -> Any:
        """Return the next line's value; None at the end of the answer."""
        line = await self.raw_line()
        return None if line is None else json.loads(line)

    async def raw_line(self) -> bytes | None:
        """Return the next line as it is; None at the end of the answer."""
        while b"\n" not in self._received:
            event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                assert self._received == b""
                return None
            assert isinstance(event, h11.Data), event
            self._received += bytes(event.data)
        first, _, self._received = self._received.partition(b"\n")
        return first

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self.stream.receive_some()))
        return event


async def connect(address: Address) -> HttpClientConnection:
    """A connection to the server; close its `stream` when done."""
    return HttpClientConnection(await trio.open_tcp_stream(address.host, address.port), str(address))


async def request(
    address: Address, method: str, target: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """Send one request on a new connection."""
    connection = await connect(address)
    async with connection.stream:
        return await connection.request(method, target, body=body, headers=headers)


async def read_all(stream: trio.abc.Stream) -> bytes:
    """Return what the server sends until it closes the connection."""
    said = b""
    while data := await stream.receive_some():
        said += data
    return said


async def is_closed(stream: trio.abc.Stream) -> bool:
    """Return whether the server has closed the connection, whatever it sent before. Closes this end too."""
    async with stream:
        with suppress(trio.BrokenResourceError):
            await read_all(stream)
    return True


@dataclass
class FakeCluster:
    """Implements `ClusterService`. It notes what it is asked."""

    asked: list[tuple[str, ...]] = field(default_factory=list)
    forwarded: list[bool] = field(default_factory=list)
    failure: Exception | None = None
    peer: PeerAnswer = field(default_factory=lambda: PeerAnswer(204, b""))
    """What other brokers answer."""
    others: dict[str, PeerAnswer | None] = field(default_factory=dict)
    """What each other broker answers to `ask_others`."""
    takes: str | None = None
    """Who takes what nobody owns."""
    report: dict[str, Any] = field(default_factory=dict)
    """What the doctor says."""

    @property
    def broker_id(self) -> str:
        return "b-0"

    async def ask_others(self, target: str, *, seconds_max: float, bytes_max: int) -> Mapping[str, PeerAnswer | None]:
        await self._note("ask others", target, str(seconds_max))
        return self.others

    def follow(self, broker: str, target: str) -> AbstractAsyncContextManager[NextPiece]:
        raise PeerSilent(f"Broker {broker} is asked for {target}, and is no real one.", was_asked=False)

    async def move(self, name: TopicName, to: str, *, forwarded: bool = False) -> None:
        await self._note("move", str(name), to, forwarded=forwarded)

    async def unload(self, name: TopicName, *, forwarded: bool = False) -> None:
        await self._note("unload", str(name), forwarded=forwarded)

    async def drain(self, broker: str, *, forwarded: bool = False) -> None:
        await self._note("drain", broker, forwarded=forwarded)

    async def undrain(self, broker: str, *, forwarded: bool = False) -> None:
        await self._note("undrain", broker, forwarded=forwarded)

    async def balance(self, broker: str, *, forwarded: bool = False) -> int:
        await self._note("balance", broker, forwarded=forwarded)
        return 3

    async def examine(self) -> dict[str, Any]:
        await self._note("examine")
        return self.report

    def tell(self) -> dict[str, Any]:
        return self.report

    def taker(self, name: str) -> str | None:
        return self.takes

    async def pass_on(self, owner: str, method: str, target: str, body: bytes) -> PeerAnswer:
        await self._note("pass on", owner, method, target, body.decode(), forwarded=False)
        return self.peer

    def take_reports(self, content: Mapping[str, object]) -> None:
        self.asked.append(("reports", str(content)))

    async def _note(self, *asked: str, forwarded: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.asked.append(asked)
        self.forwarded.append(forwarded)


@dataclass
class FakeTopics:
    """Implements `TopicService`."""

    layouts: dict[TopicName, Layout] = field(default_factory=dict)
    in_use: set[TopicName] = field(default_factory=set)
    subscriptions: dict[str, SubscriptionStatistics] = field(default_factory=dict)
    groups: dict[str, GroupStatistics] = field(default_factory=dict)
    initial_segments: int = 1
    moved: list[tuple[str, str, int | None]] = field(default_factory=list)
    """Calls of `seek` and (with no time) `skip_all`: name, subscription, time."""
    migrations_asked: list[MigrationAsked] = field(default_factory=list)
    """By controllers, which `begin_migration` was called for."""
    failure: Exception | None = None
    merges: bool = True
    migratable: set[TopicName] = field(default_factory=set)
    """The `topic://` names of those `persistent://` topics that can be migrated; those `in_use` only by force."""
    gate: trio.Event | None = None
    """When set, every call waits for it."""
    waiting: trio.Event = field(default_factory=trio.Event)
    """Set once a call waits at the gate."""

    @property
    def regular(self) -> RegularService:
        raise AssertionError("tests of regular topics run a broker")

    @property
    def schemas(self) -> SchemaService:
        raise AssertionError("tests of schemas run a broker")

    @property
    def messages(self) -> PeekService:
        raise AssertionError("tests of messages run a broker")

    @property
    def transactions(self) -> Inspection:
        made = Transactions(
            MemoryStore(), TransactionSettings(coordinators=1, timeout_ms_max=1000, retention_ms=0), lambda: NOW_MS
        )
        return Inspection(MemoryStore(), made.coordinator, lambda: NOW_MS)

    async def create_topic(self, name: TopicName, *, segments: int | None, properties: Mapping[str, str]) -> None:
        await self._begin()
        if name in self.layouts:
            raise TopicExists(f"{name} already exists.")
        count = self.initial_segments if segments is None else segments
        self.layouts[name] = create(count, NOW_MS, creation_id="c", properties=properties)

    async def layout(self, name: TopicName) -> Layout:
        await self._begin()
        return self._find(name)

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        await self._begin()
        self._find(name)
        if name in self.in_use and not force:
            raise TopicInUse(f"{name} has consumers.")
        del self.layouts[name]

    async def split(self, name: TopicName, segment_id: int) -> None:
        await self._begin()
        self._finish(name, self._find(name).begin_split(segment_id))

    async def merge(self, name: TopicName, first_id: int, second_id: int, *, allow_fewer: bool = True) -> None:
        await self._begin()
        if not self.merges:
            raise NotSupported("This broker does not merge segments.")
        self._finish(name, self._find(name).begin_merge(first_id, second_id, allow_fewer=allow_fewer))

    async def begin_migration(self, name: TopicName, asked: MigrationAsked, *, force: bool) -> None:
        self.migrations_asked.append(asked)
        await self.migrate(name, force=force)

    async def migrate(self, name: TopicName, *, force: bool) -> None:
        await self._begin()
        if name in self.layouts:
            raise TopicExists(f"{name} is scalable already.")
        if name not in self.migratable:
            raise TopicNotFound(f"{name.as_regular} does not exist.")
        if name in self.in_use and not force:
            raise OldClientsConnected(f"{name.as_regular} has producers.")
        self.layouts[name] = migrated_layout(name.as_regular, "c", {}, NOW_MS)

    async def create_subscription(self, name: TopicName, subscription: str, kind: SubscriptionKind) -> None:
        await self._begin()
        layout = self._find(name)
        there = layout.subscriptions.get(subscription)
        if there is None:
            made = LayoutSubscription(kind, "c", StartPosition.EARLIEST, NOW_MS)
            self.layouts[name] = layout.add_subscription(subscription, made)
        elif there.kind is not kind:
            raise SubscriptionExists(f"Subscription {subscription} is there with type {there.kind}.")

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        await self._begin()
        self.layouts[name] = self._find(name).remove_subscription(subscription)

    async def seek(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        await self._begin()
        self._find_subscription(name, subscription)
        self.moved.append((str(name), subscription, timestamp_ms))

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        await self._begin()
        self._find_subscription(name, subscription)
        self.moved.append((str(name), subscription, None))

    async def segment_backlog(self, name: TopicName, subscription: str) -> int:
        await self._begin()
        self._find_subscription(name, subscription)
        return 17

    async def segment_is_untouched(self, name: TopicName) -> bool:
        await trio.lowlevel.checkpoint()
        return name not in self.in_use

    async def log_statistics(self, name: TopicName, indexes: Collection[int] = ()) -> LogStatistics:
        await self._begin()
        self._find(name.as_scalable)
        left_from = {index: 9 - index for index in sorted(indexes)}
        return LogStatistics({"s": SegmentSubscription(17, frozenset({"b", "a"}), "SHARED")}, 3, 9, left_from=left_from)

    async def segment_users(self, name: TopicName) -> SegmentUsers:
        await self._begin()
        self._find(name.scalable_topic)
        return SegmentUsers(0, frozenset())

    async def auto_scale(self, name: TopicName) -> AutoScaleOverride | None:
        await self._begin()
        return self._find(name).auto_scale

    async def set_auto_scale(self, name: TopicName, override: AutoScaleOverride | None) -> None:
        await self._begin()
        if override is not None:
            override.over(AutoScalePolicy())
        self.layouts[name] = self._find(name).with_auto_scale(override)

    async def topics(self, tenant: str, namespace: str, properties: Mapping[str, str]) -> Sequence[TopicName]:
        await self._begin()
        return [
            name
            for name, layout in self.layouts.items()
            if (name.tenant, name.namespace) == (tenant, namespace) and properties.items() <= layout.properties.items()
        ]

    async def statistics(self, name: TopicName) -> TopicStatistics:
        await self._begin()
        return TopicStatistics(self._find(name), self.subscriptions, self.groups)

    async def _begin(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            self.waiting.set()
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure

    def _find(self, name: TopicName) -> Layout:
        if name not in self.layouts:
            raise TopicNotFound(f"{name} does not exist.")
        return self.layouts[name]

    def _find_subscription(self, name: TopicName, subscription: str) -> None:
        layout = self._find(name.scalable_topic)
        if name.segment is not None and name.segment not in [
            segment.descriptor for segment in layout.segments.values()
        ]:
            raise TopicNotFound(f"{name} does not exist.")
        if subscription not in layout.subscriptions:
            raise SubscriptionNotFound(f"There is no subscription {subscription}.")

    def _finish(self, name: TopicName, opened: Layout) -> None:
        assert opened.intent is not None
        self.layouts[name] = opened.replace_segments(opened.intent, NOW_MS).finish()


@dataclass
class FakeMonitor:
    """Implements `BrokerMonitor`."""

    now: BrokerStatistics = field(default_factory=BrokerStatistics)
    of_topics: Series = field(default_factory=Series)
    trouble: str | None = None

    def statistics(self) -> BrokerStatistics:
        return self.now

    async def series(self) -> Series:
        await trio.lowlevel.checkpoint()
        return self.of_topics

    def problem(self) -> str | None:
        return self.trouble
