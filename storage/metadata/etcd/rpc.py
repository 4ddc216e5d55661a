"""Calls to etcd from Trio: the one module that knows gRPC.

A unary call is a gRPC future. Its completion reschedules the waiting Trio task through a `TrioToken`, so no thread is
held meanwhile (measured: a thread for each call costs five times the CPU). One thread reads a stream and hands its
answers to Trio through a bounded queue. Ending the call ends the thread.

Foreign errors are renamed here. Every failure of a call is an `RpcError`, which says whether the request may have been
carried out. Nothing is retried here, because only the caller knows what may be repeated. With one server, a call waits
for a connection instead of failing at once. So an unreachable server costs no loop: gRPC reconnects by itself, after at
most RECONNECT_MS_MAX.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

import grpc
import trio
from google.protobuf.message import Message

from storage.metadata.etcd.generated import etcd_pb2 as pb

RECONNECT_MS_MAX: Final = 1000
"""The longest that gRPC waits between two attempts to connect."""

ANSWERS_WAITING_MAX: Final = 256
"""Answers of a stream that were read and not taken yet."""

_OPTIONS: Final = (
    # A listing's page and a watch's backlog may be large. Only the data in etcd bounds them.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    # The keep-alive of the watch's silent connection detects a server that vanished.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Each store has its own connection, so the end of another store does not affect it.
    ("grpc.use_local_subchannel_pool", 1),
)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Method(Generic[Request, Response]):
    """One of the API's methods, by its public path."""

    path: str
    request: type[Request]
    response: type[Response]


RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
COMPACT: Final = Method("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
LEASE_GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE: Final = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
LEASE_TIME_TO_LIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse
)
_KEEP_ALIVE: Final = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
_WATCH: Final = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)

_REQUIRES_LEADER: Final = (("hasleader", "true"),)
"""Has a server end a watch when it has lost the other servers. Otherwise it answers, and delivers nothing."""

_REFUSALS: Final = frozenset(
    {"INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "FAILED_PRECONDITION", "PERMISSION_DENIED", "UNAUTHENTICATED"}
    | {"UNIMPLEMENTED", "RESOURCE_EXHAUSTED"}
)
"""Codes by which the server says that it did not carry out the request, unless its space is exceeded."""


class RpcError(Exception):
    """A call failed. Carries the name of gRPC's code, and the message of the server or the library."""

    def __init__(self, code: str, details: str, *, server: int = 0) -> None:
        super().__init__(f"{details or 'no reason given'} ({code})")
        self.code = code
        self.details = details
        self.server = server
        """The server that was asked, as a number in the list of endpoints."""

    @property
    def is_refusal(self) -> bool:
        """Whether the server refused it, so that repeating it does not help. It was not done, unless `is_full`."""
        return self.code in _REFUSALS

    @property
    def is_full(self) -> bool:
        """Whether etcd's space is exceeded. etcd may find that only when it has carried out the request."""
        return self.code == "RESOURCE_EXHAUSTED" and "space exceeded" in self.details

    @property
    def is_missing_lease(self) -> bool:
        """Whether a lease that the request named has ended."""
        return self.code == "NOT_FOUND" and "lease not found" in self.details

    @property
    def is_compacted(self) -> bool:
        """Whether it asked for a revision that etcd has forgotten."""
        return self.code == "OUT_OF_RANGE" and "compacted" in self.details


@dataclass
class RpcStatistics:
    """Counters since the connection was made."""

    calls: int = 0
    failures: int = 0
    streams: int = field(default=0)


class Rpc:
    """A connection to one of several servers of one cluster; `close` it."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        """`endpoints` are HOST:PORT each. Does not connect yet."""
        self.endpoints = tuple(endpoints)
        self.statistics = RpcStatistics()
        self._channels = [grpc.insecure_channel(endpoint, options=_OPTIONS) for endpoint in endpoints]
        # With one server, a call waits for it. With several, the next one is asked as soon as one cannot be reached.
        self._waits = len(endpoints) == 1
        self._current = 0
        self._stubs: dict[tuple[int, str], Any] = {}
        self._token = trio.lowlevel.current_trio_token()
        self._threads = trio.CapacityLimiter(2)

    def close(self) -> None:
        """End every call and every connection."""
        for channel in self._channels:
            channel.close()

    @property
    def current(self) -> int:
        """The server that calls are sent to, as a number in the list of endpoints."""
        return self._current

    def turn(self, silent: int) -> None:
        """Send later calls to the server behind `silent` in the list, because that one does not answer.

        No effect if they go elsewhere already. Otherwise calls that fail together would turn back to it.
        """
        if silent == self._current:
            self._current = (silent + 1) % len(self._channels)

    async def call(self, method: Method[Request, Response], request: Request, *, seconds_max: float) -> Response:
        """One unary call. If it is cancelled, it is unknown whether it was carried out.

        Raises:
            RpcError: it failed, or took longer than `seconds_max`.
        """
        task = trio.lowlevel.current_task()
        is_waiting = True

        def wake() -> None:
            nonlocal is_waiting
            if is_waiting:
                is_waiting = False
                trio.lowlevel.reschedule(task)

        def done(_future: object) -> None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(wake)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            nonlocal is_waiting
            is_waiting = False
            future.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        self.statistics.calls += 1
        server = self._current
        stub = self._stub("unary_unary", method)
        future = stub.future(request, timeout=seconds_max, wait_for_ready=self._waits)
        future.add_done_callback(done)
        await trio.lowlevel.wait_task_rescheduled(abort)
        if future.code() is not grpc.StatusCode.OK:
            self.statistics.failures += 1
            raise _error_of(future, server)
        response: Response = future.result()
        return response

    async def keep_alive(self, leases: Sequence[int], *, seconds_max: float) -> dict[int, int]:
        """Renew leases.

        Returns the seconds that each has now, 0 for one that has ended. Uses a thread, and is rarely called.

        Raises:
            RpcError: it failed, or took longer than `seconds_max`.
        """
        server = self._current
        call = self._stub("stream_stream", _KEEP_ALIVE)(
            iter([pb.LeaseKeepAliveRequest(ID=lease) for lease in leases]),
            timeout=seconds_max,
            wait_for_ready=self._waits,
        )

        def read() -> dict[int, int] | RpcError:
            try:
                return {response.ID: response.TTL for response in call}
            except grpc.RpcError as error:
                return _error_of(error, server)

        result = await self._read_in_thread(call, read)
        if isinstance(result, RpcError):
            raise result
        return result

    async def watch(
        self, create: pb.WatchCreateRequest, receive: Callable[[pb.WatchResponse], bool], *, seconds_max: float
    ) -> RpcError | None:
        """Watch a range: `receive` is called with each answer, one after another, until it returns False.

        Returns:
            Why the stream ended by itself: that nothing came in the first `seconds_max`, for example; None after False.
        """
        self.statistics.streams += 1
        server = self._current
        # The server ends the watch when the stream of requests ends, so that stream waits for the end.
        requests: SimpleQueue[pb.WatchRequest | None] = SimpleQueue()
        requests.put(pb.WatchRequest(create_request=create))
        call = self._stub("stream_stream", _WATCH)(
            _until_none(requests), wait_for_ready=self._waits, metadata=_REQUIRES_LEADER
        )
        with trio.move_on_after(seconds_max) as until_first:

            def take(response: pb.WatchResponse) -> bool:
                until_first.deadline = float("inf")
                return receive(response)

            inbox = _Inbox(call, take)

            def read() -> RpcError:
                try:
                    for response in call:
                        inbox.put(response, self._token)
                except grpc.RpcError as error:
                    return _error_of(error, server)
                return RpcError("UNAVAILABLE", "the server ended the watch", server=server)

            try:
                error = await self._read_in_thread(call, read)
            finally:
                requests.put(None)
            inbox.empty()
            if inbox.failure is not None:
                raise inbox.failure
            return None if inbox.is_closed else error
        return RpcError("DEADLINE_EXCEEDED", f"no watch was set up within {seconds_max:g} s", server=server)

    async def _read_in_thread(self, call: Any, read: Callable[[], Result]) -> Result:  # noqa: ANN401 - untyped library
        """Run `read` in a thread. If this is cancelled, the call is cancelled, which ends the thread."""
        async with trio.open_nursery() as nursery:

            async def cancel_call() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    call.cancel()

            nursery.start_soon(cancel_call)
            try:
                return await trio.to_thread.run_sync(read, limiter=self._threads)
            finally:
                nursery.cancel_scope.cancel()
        raise AssertionError("the nursery's body returns or raises")

    def _stub(self, kind: str, method: Method[Any, Any]) -> Any:  # noqa: ANN401 - the library has no types
        key = (self._current, method.path)
        stub = self._stubs.get(key)
        if stub is None:
            stub = self._stubs[key] = getattr(self._channels[self._current], kind)(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return stub


class _Inbox:
    """Hands a stream's answers from the reading thread to Trio, which takes all of them at one wake-up.

    Bounded: beyond ANSWERS_WAITING_MAX the thread waits, and then the server waits.
    """

    def __init__(self, call: Any, take: Callable[[pb.WatchResponse], bool]) -> None:  # noqa: ANN401 - untyped library
        self.failure: Exception | None = None
        self.is_closed = False
        """Whether no more is accepted, because `take` said so or failed."""
        self._call = call
        self._take = take
        self._waiting: deque[pb.WatchResponse] = deque()
        self._room = threading.Semaphore(ANSWERS_WAITING_MAX)

    def put(self, response: pb.WatchResponse, token: trio.lowlevel.TrioToken) -> None:
        """Called by the thread."""
        self._room.acquire()
        self._waiting.append(response)
        token.run_sync_soon(self.empty, idempotent=True)

    def empty(self) -> None:
        """Take everything that waits. Called by Trio, where nothing may be raised."""
        while self._waiting:
            response = self._waiting.popleft()
            self._room.release()
            if not self.is_closed:
                try:
                    self.is_closed = not self._take(response)
                except Exception as error:
                    self.failure = error
                    self.is_closed = True
                if self.is_closed:
                    self._call.cancel()


def _until_none(requests: "SimpleQueue[pb.WatchRequest | None]") -> Iterator[pb.WatchRequest]:
    while (request := requests.get()) is not None:
        yield request


def _error_of(call: Any, server: int) -> RpcError:  # noqa: ANN401 - the library has no types
    return RpcError(call.code().name, call.details() or "", server=server)
