"""One client connection: reads frames, passes commands to their handlers, and writes responses.

The session owns the connection's nursery. Commands of a producer or consumer (SEND, ACK, FLOW, …) are handled inline,
in the order of arrival; they wait only for backpressure. Commands with a request id run as tasks, so that loading one
topic does not delay another. Their number is bounded.

An error is answered with the protocol's own error, and closes at most this connection (docs/design.md#invariants, 7).
"""

from contextlib import AsyncExitStack
from functools import partial
from math import inf
from typing import Final

import structlog
import trio

from broker.errors import CredentialsUnchecked
from broker.outbox import Outbox
from broker.ports import Ports
from broker.pulsar.connection import Connection
from broker.pulsar.faults import Fault, fault_of
from broker.pulsar.requests import CommandHandler, Inline, Request, refuse_by_error
from broker.pulsar.sizes import SIZES
from broker.pulsar.unsupported import principal_of
from tidewire.wire.protocols import SpokenProtocol
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.errors import FrameError, OtherProtocol
from tidewire.wire.pulsar.frames import Frame, FrameDecoder, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import NO_REQUEST

READ_BYTES: Final = 64 * 1024
"""The size of one read. A connection that waits for room holds this in addition to its share."""

READ_BYTES_MAX: Final = 256 * 1024
"""The size of one read within a large frame, whose bytes are reserved."""

FRAME_EXTRA_BYTES: Final = 1024
"""The least memory that a large frame takes in addition to its bytes."""

HANDSHAKE_SECONDS_MAX: Final = 10
"""How long a client may take to send CONNECT."""

REQUESTS_MAX: Final = 256
"""Most requests of one connection in progress. At this number, the connection is not read."""

GOODBYE_SECONDS: Final = 5
"""How long a connection that broke the protocol is kept open to deliver the error."""

OVERDUE: Final = "the client did not complete a large frame, or did not read, while other clients waited for memory"

FRAMES_AT_ONCE: Final = 32
"""Frames that are handled before other tasks have a turn. Small frames take 10 to 50 µs each."""

FRAME_BYTES_AT_ONCE: Final = 64 * 1024
"""Bytes of frames that are handled before other tasks have a turn. A single frame may have more."""

CLOSED_AT_ONCE: Final = 64
"""Producers, consumers and sessions of a lost connection that are closed in one step of the event loop."""

log = structlog.get_logger(__name__)

Type = pb.BaseCommand.Type

PONG: Final = encode_command(commands.pong())


class PulsarSession:
    """Runs one connection until either side ends it."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        connection: Connection,
        *,
        server_version: str,
        message_bytes_max: int,
        ports: Ports,
    ) -> None:
        """Set up. `use` adds the groups of commands; `run` serves the client and learns who it is."""
        self._connection = connection
        self._peer = connection.peer
        self._share = connection.share
        self._refusal: Fault | None = None
        """Why this connection is not served. Each request is answered with it, for clients that ignore it at
        CONNECT."""
        self._stream = stream
        self._outbox = connection.outbox
        self._server_version = server_version
        self._message_bytes_max = message_bytes_max
        self._ports = ports
        self._decoder = FrameDecoder(message_bytes_max + 10 * 1024, SIZES)
        self._inline: dict[int, Inline] = {Type.PING: partial(_ping, connection.outbox), Type.PONG: _pong}
        self._requests: dict[int, Request] = {}
        self._handlers: list[CommandHandler] = []
        self._request_places = trio.Semaphore(REQUESTS_MAX)

    def use(self, handler: CommandHandler) -> None:
        """Serve the commands of `handler` on this connection."""
        self._handlers.append(handler)
        self._inline.update(handler.inline)
        self._requests.update(handler.requests)

    async def run(self) -> None:
        """Serve until the peer leaves or breaks the protocol. An error here ends only this connection."""
        async with AsyncExitStack() as closing:
            closing.callback(self._outbox.close)
            closing.callback(self._share.close)
            # The exception of a failed write keeps its stack frames alive until a garbage collection.
            closing.callback(self._decoder.clear)
            for handler in self._handlers:
                closing.push_async_callback(_close, handler)
            try:
                # Closing needs a deadline, because a TLS stream sends a last message, and its peer may not read.
                with trio.CancelScope() as goodbye:
                    async with self._stream, trio.open_nursery() as writing:
                        writing.start_soon(self._outbox.run, self._stream)
                        try:
                            async with trio.open_nursery() as working:
                                await self._read(working)
                                working.cancel_scope.cancel()
                        finally:
                            self._outbox.finish()
                            goodbye.deadline = trio.current_time() + GOODBYE_SECONDS
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                # The peer is gone. Its producers and consumers are closed.
                log.debug("connection lost")
            except* Exception:
                # A bug that one connection meets must not end the others. If storage cannot continue, it ends the
                # broker itself.
                log.exception("connection ended by an unexpected error", peer=self._peer.address)

    async def _read(self, working: trio.Nursery) -> None:
        turn = _Turn()
        decoder = self._decoder
        connected = False
        handshake_until = trio.current_time() + HANDSHAKE_SECONDS_MAX
        while data := await self._receive(decoder.expected_bytes, inf if connected else handshake_until):
            decoder.feed(data)
            # The decoder has a copy. Without this, each of many idle connections would hold its last read.
            del data
            try:
                while (frame := decoder.next_frame()) is not None:
                    if turn.is_used_up(decoder.taken_bytes):
                        await trio.lowlevel.checkpoint()
                    # Checked before each frame: a small request may have a large response, and one read holds many.
                    if not self._outbox.writable and not await self._wait_writable():
                        return
                    self._share.arrived()
                    if not connected:
                        if not self._connect(frame.command):
                            return
                        connected = True
                    else:
                        await self._handle(frame, working)
                    self._share.complete()
                await self._share.reserve(decoder.expected_bytes + FRAME_EXTRA_BYTES)
            except OtherProtocol as other:
                reason = self._ports.refusal(other.spoken, SpokenProtocol.PULSAR)
                log.warning("client of another protocol", peer=self._peer.address, reason=reason)
                self._put(commands.error(NO_REQUEST, pb.UnsupportedVersionError, reason))
                return
            except FrameError as broken:
                log.info("connection broke the protocol", peer=self._peer.address, reason=str(broken))
                message = f"The broker closes the connection, because the client broke the protocol: {broken}."
                self._put(commands.error(NO_REQUEST, pb.UnknownError, message))
                return

    async def _receive(self, expected_bytes: int, until: float) -> bytes | bytearray:
        """Return the next bytes; empty if the client has left, or took too long."""
        size = READ_BYTES_MAX if expected_bytes > READ_BYTES else READ_BYTES
        with trio.CancelScope(deadline=until) as self._share.receiving:
            if not self._share.is_overdue:
                try:
                    return await self._stream.receive_some(size)
                except trio.BrokenResourceError:
                    # It is not raised through the nurseries: their frames would keep the session until a collection.
                    log.debug("connection lost")
                    return b""
        self._refuse_to_wait(OVERDUE if self._share.is_overdue else "CONNECT did not arrive in time")
        return b""

    async def _wait_writable(self) -> bool:
        """Wait until the client has read enough. Return False if others need the bytes that its frame reserved."""
        with trio.CancelScope() as self._share.receiving:
            if not self._share.is_overdue:
                await self._outbox.wait_writable()
                return True
        self._refuse_to_wait(OVERDUE)
        return False

    def _refuse_to_wait(self, reason: str) -> None:
        log.info("connection closed", reason=reason)
        message = f"The broker closes the connection: {reason}. Connect again."
        self._put(commands.error(NO_REQUEST, pb.ServiceNotReady, message))

    def _connect(self, command: pb.BaseCommand) -> bool:
        if command.type != Type.CONNECT:
            reason = "CONNECT must be the first command. The broker closes the connection."
            self._put(commands.error(NO_REQUEST, pb.UnsupportedVersionError, reason))
            return False
        self._peer.version = command.connect.client_version
        try:
            self._connection.principal = principal_of(command.connect)
        except CredentialsUnchecked as refused:
            log.info("connection with credentials refused", peer=self._peer.address, client=self._peer.version[:100])
            self._refusal = fault_of(refused)
            if not self._peer.retries_refused_connect:
                self._put(commands.error(NO_REQUEST, self._refusal.code, self._refusal.message))
                return False
        self._put(commands.connected(self._server_version, max_message_size=self._message_bytes_max))
        return True

    async def _handle(self, frame: Frame, working: trio.Nursery) -> None:
        command = frame.command
        if self._refusal is not None and command.type != Type.PING:
            asked = self._requests.get(command.type)
            self._put((refuse_by_error if asked is None else asked.refuse)(command, self._refusal))
            return
        inline = self._inline.get(command.type)
        if inline is not None:
            await inline(frame)
            return
        request = self._requests.get(command.type)
        if request is None:
            reason = f"Tidewire does not support the command {Type.Name(command.type)}."
            self._put(refuse_by_error(command, Fault(pb.NotAllowedError, reason)))
            return
        size = command.ByteSize()
        await self._share.take(size)
        try:
            self._request_places.acquire_nowait()
        except trio.WouldBlock:
            await self._request_places.acquire()
        request.announce(command)
        working.start_soon(self._run_request, request, command, size)

    async def _run_request(self, request: Request, command: pb.BaseCommand, size: int) -> None:
        try:
            await request.handle(command)
        except Exception as error:
            self._put(request.refuse(command, fault_of(error)))
        finally:
            self._share.give(size)
            self._request_places.release()

    def _put(self, command: pb.BaseCommand) -> None:
        self._outbox.put(encode_command(command))


# These are functions, not methods: a bound method in the session would be a reference cycle.
async def _ping(outbox: Outbox, frame: Frame) -> None:
    outbox.put(PONG)


async def _pong(frame: Frame) -> None:
    """Ignore PONG: TCP keep-alive detects dead peers (docs/design.md#dispatch)."""


async def _close(handler: CommandHandler) -> None:
    """Release everything a connection held, perhaps thousands of producers, in steps between which others run."""
    with trio.CancelScope(shield=True):
        for number, _ in enumerate(handler.close(), 1):
            if number % CLOSED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()


class _Turn:
    """Bounds how much of the event loop one connection takes before others run (E7).

    One read may hold ten thousand small commands, and most of them are handled without a wait. The bound counts frames
    and bytes, whose cost is bounded. It does not measure time, so tests run the same way on every machine.
    """

    def __init__(self) -> None:
        self._frames = 0
        self._bytes_until = FRAME_BYTES_AT_ONCE

    def is_used_up(self, taken_bytes: int) -> bool:
        """Count one more frame; `taken_bytes` counts from the connection's start. If True, a new turn has begun."""
        self._frames += 1
        if self._frames >= FRAMES_AT_ONCE or taken_bytes >= self._bytes_until:
            self._frames = 0
            self._bytes_until = taken_bytes + FRAME_BYTES_AT_ONCE
            return True
        return False
