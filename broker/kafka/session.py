"""One connection of a Kafka client: reads requests, passes them to their handlers, and writes the responses in order.

A client may send requests without waiting for responses. As in Kafka, the next one is handled when the one before has
its response. Produce alone is pipelined (`requests.py`).

A request that cannot be read ends its connection, and so does one of a kind or version that is not served: its client
asked ApiVersions before. An error of one part of a request, such as a partition, is answered with Kafka's code for it.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import structlog
import trio

from broker.budgets import ReceiveShare
from broker.kafka.requests import Api, Asked, ConnectionEnds, Handler, Later
from broker.outbox import Outbox
from broker.ports import NO_PORTS, Ports
from storage.errors import ExpectedError
from storage.metadata.pacing import paced
from tidewire.wire.kafka.api_keys import ApiKey, is_flexible
from tidewire.wire.kafka.codec import Input, Pieces, decoder
from tidewire.wire.kafka.codec_steps import decode_steps, encode_steps
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.errors import RequestError
from tidewire.wire.kafka.frames import Request, RequestDecoder, response_pieces
from tidewire.wire.kafka.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
)
from tidewire.wire.protocols import SpokenProtocol, protocol_of

READ_BYTES: Final = 64 * 1024
READ_BYTES_MAX: Final = 256 * 1024
"""The size of one read within a large request, whose bytes are reserved."""

REQUEST_EXTRA_BYTES: Final = 64 * 1024
"""What a request may have besides the batches of one message size."""

PRODUCE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest Produce request, unless the message size allows a larger one. It may have batches for many partitions.
And it may have a batch that is too large, which is answered by name."""

AT_ONCE_BYTES: Final = 16 * 1024
"""A request up to this size is read in one step. It has too few elements to take long."""

TURN_BYTES: Final = 8 * 1024
"""Requests of one read that are handled in one step; a single one may be larger. So small ones share a sync: a client
writes to the partitions of a transaction by one request each."""

PIPELINED_MAX: Final = 64
"""Produce requests of one connection whose batches wait for the disk. At this number, the connection is not read."""

API_VERSIONS_MAX: Final = 4

TRANSACTION_VERSION: Final = "transaction.version"
"""The feature by which clients know whether an end gives them the next epoch (KIP-890)."""

_NOTHING: Final = Input(b"")

log = structlog.get_logger(__name__)


class KafkaSession:
    """Runs one connection until either side ends it."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        outbox: Outbox,
        share: ReceiveShare,
        client: str,
        request_bytes_max: int,
        ports: Ports = NO_PORTS,
    ) -> None:
        """Set up. `use` adds the handlers; `run` serves the client, whose address is `client`."""
        self._stream = stream
        self._outbox = outbox
        self._share = share
        self._client = client
        self._ports = ports
        self._decoder = RequestDecoder(request_bytes_max + REQUEST_EXTRA_BYTES, PRODUCE_BYTES_MAX)
        self._apis: dict[int, Api] = {
            ApiKey.API_VERSIONS: Api(ApiVersionsRequest, ApiVersionsResponse, 0, API_VERSIONS_MAX, self._api_versions)
        }
        self._early: bytes | bytearray | None = None
        """What was received and not decoded: the first bytes, or those that came while a request waited."""
        self._waiting = 0
        """Responses that were handed to the writer and not sent."""
        self._answered = trio.Event()

    def use(self, handler: Handler) -> None:
        """Serve the requests of `handler` on this connection."""
        for key, api in handler.apis.items():
            self._apis[key] = api

    async def run(self) -> None:
        """Serve until the peer leaves or breaks the protocol. An error here ends only this connection."""
        async with AsyncExitStack() as closing:
            closing.callback(self._outbox.close)
            closing.callback(self._share.close)
            closing.callback(self._decoder.clear)
            try:
                async with self._stream, trio.open_nursery() as nursery:
                    send, receive = trio.open_memory_channel[tuple[Request, Api, Later]](PIPELINED_MAX)
                    nursery.start_soon(self._outbox.run, self._stream)
                    nursery.start_soon(self._answer_later, receive)
                    await self._read(send)
                    nursery.cancel_scope.cancel()
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                log.debug("connection lost", client=self._client)
            except* Exception:
                # A bug that one connection meets must not end the others.
                log.exception("connection ended by an unexpected error", client=self._client)

    async def _read(self, later: trio.MemorySendChannel[tuple[Request, Api, Later]]) -> None:
        decoder_ = self._decoder
        self._early = await self._receive()
        spoken = protocol_of(self._early)
        if spoken is not None and spoken is not SpokenProtocol.KAFKA:
            reason = self._ports.refusal(spoken, SpokenProtocol.KAFKA)
            log.warning("client of another protocol", client=self._client, reason=reason)
            return
        while data := await self._next_bytes():
            decoder_.feed(data)
            # The decoder has a copy. Without this, each of many idle connections would hold its last read.
            del data
            try:
                handled_bytes = 0
                while (request := decoder_.next_request()) is not None:
                    if handled_bytes and handled_bytes + request.size > TURN_BYTES:
                        await trio.lowlevel.checkpoint()
                        handled_bytes = 0
                    handled_bytes += request.size
                    self._share.arrived()
                    if not await self._handle(request, later):
                        return
                    self._share.complete()
                    del request
                await self._share.reserve(decoder_.expected_bytes)
            except RequestError as broken:
                log.info("connection broke the protocol", client=self._client, reason=str(broken))
                return

    async def _next_bytes(self) -> bytes | bytearray:
        early, self._early = self._early, None
        return await self._receive() if early is None else early

    @asynccontextmanager
    async def _while_connected(self) -> AsyncIterator[None]:
        """See `Asked`. What the client sends meanwhile is its next request, and waits."""
        has_left = False

        async def watch() -> None:
            nonlocal has_left
            self._early = await self._receive()
            if not self._early:
                has_left = True
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            if self._early is None:
                nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()
        if has_left:
            raise ConnectionEnds("its client left while a request waited")

    async def _receive(self) -> bytes | bytearray:
        size = READ_BYTES_MAX if self._decoder.expected_bytes > READ_BYTES else READ_BYTES
        with trio.CancelScope() as self._share.receiving:
            if not self._share.is_overdue:
                return await self._stream.receive_some(size)
        log.info("connection closed", client=self._client, reason="the client did not complete a large request in time")
        return b""

    async def _handle(self, request: Request, later: trio.MemorySendChannel[tuple[Request, Api, Later]]) -> bool:
        """Handle a request. Returns False if the connection has to end."""
        api = self._apis.get(request.api_key)
        if api is None or not api.version_min <= request.version <= api.version_max:
            if request.api_key == ApiKey.API_VERSIONS:
                # The client may know only later versions. It finds this answer in version 0, and asks again (KIP-511).
                await self._all_answered()
                await self._outbox.wait_writable()
                refusal = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, self._versions())
                await self._put(request._replace(version=0), self._apis[ApiKey.API_VERSIONS], refusal)
                return True
            reason = f"the request {request.api_key} in version {request.version} is not served"
            log.info("connection closed", client=self._client, reason=reason)
            return False
        flexible = is_flexible(request.api_key, request.version)
        if len(request.body.data) > AT_ONCE_BYTES:
            message = await paced(decode_steps(api.request, request.version, request.body, is_flexible=flexible))
        else:
            message = decoder(api.request, request.version, is_flexible=flexible)(request.body)
        if request.api_key != ApiKey.PRODUCE:
            await self._all_answered()
        await self._outbox.wait_writable()
        try:
            asked = Asked(request.version, request.client_id or "", self._while_connected)
            response = await api.handle(message, asked)
        except (ConnectionEnds, ExpectedError) as ends:
            # An expected error that the handler could put into no response, such as a store that is away.
            log.info("connection closed", client=self._client, reason=str(ends))
            return False
        if isinstance(response, Later):
            self._waiting += 1
            # Its body has the batches, which are in the ledger now.
            waiting = (request._replace(body=_NOTHING), api, response)
            try:
                later.send_nowait(waiting)
            except trio.WouldBlock:
                await later.send(waiting)
        elif response is not None:
            await self._all_answered()
            await self._put(request, api, response)
        return True

    async def _answer_later(self, waiting: trio.MemoryReceiveChannel[tuple[Request, Api, Later]]) -> None:
        while True:
            try:
                request, api, later = waiting.receive_nowait()
            except trio.WouldBlock:
                request, api, later = await waiting.receive()
            # One sync may have made many durable. Their responses leave together.
            response = await later.wait()
            if response is not None:
                await self._put(request, api, response)
            self._waiting -= 1
            if not self._waiting:
                answered, self._answered = self._answered, trio.Event()
                answered.set()

    async def _all_answered(self) -> None:
        while self._waiting:
            await self._answered.wait()

    async def _put(self, request: Request, api: Api, response: Any) -> None:  # noqa: ANN401
        body: Pieces = []
        assert isinstance(response, api.response), "a handler returns what it declares"
        flexible = is_flexible(request.api_key, request.version)
        await paced(encode_steps(body, response, request.version, is_flexible=flexible))
        self._outbox.put(*response_pieces(request, body))

    async def _api_versions(self, _request: ApiVersionsRequest, _asked: Asked) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=self._versions(),
            supported_features=(SupportedFeature(TRANSACTION_VERSION, 0, 2),),
            finalized_features_epoch=1,
            finalized_features=(FinalizedFeature(TRANSACTION_VERSION, 2, 2),),
        )

    def _versions(self) -> tuple[ApiVersion, ...]:
        return tuple(ApiVersion(key, api.version_min, api.version_max) for key, api in sorted(self._apis.items()))
