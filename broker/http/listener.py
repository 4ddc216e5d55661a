"""Serves an ASGI application on a listening socket: hypercorn's HTTP, our own accept loop around it.

Hypercorn's `serve` lets one connection's failure end them all, and some malformed requests do make a connection fail
(an `Upgrade: h2c` with bad settings is enough). It also keeps tasks of a connection that is gone, in HTTP/2, for good.
So each connection is run here on its own: its failure is logged and ends it alone, its life has a bound, and so has
the number of them. Waiting costs nothing: a connection that is idle is closed after a few seconds, and then there is
no timer left.
"""

import socket
from functools import partial
from typing import Final, cast

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.logging import Logger
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from starlette.types import ASGIApp

from broker.addresses import Address

CONNECTIONS_MAX: Final = 256
"""Connections served at a time; one more is closed at once."""
IDLE_SECONDS_MAX: Final = 5
"""How long a connection stays open between two requests."""
REQUESTS_MAX: Final = 100
"""Requests that one connection carries; the last answer says that it closes."""
CONNECTION_SECONDS_MAX: Final = 600
"""Whatever a connection is doing ends after this; longer than REQUESTS_MAX requests with pauses between them."""
STOP_SECONDS_MAX: Final = 3
"""How long requests that are being handled may go on once the listener is to stop."""
USER_TIMEOUT_MS: Final = 30_000
"""How long a peer may leave sent bytes unread or unacknowledged before the kernel gives it up."""

log = structlog.get_logger(__name__)


async def serve_http(
    application: ASGIApp,
    listener: trio.SocketListener,
    *,
    stop: trio.Event | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then refuse new connections, finish what is being handled, and return.

    Cancelling ends everything at once. Either way the listener is closed.

    Args:
        application: as `build_application` makes it.
        listener: an open socket, of which this takes possession.
        stop: ends it gracefully, within STOP_SECONDS_MAX.
        task_status: told the address that is listened on, with the real port, once connections are accepted.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Set on the listening socket, as accepted ones inherit it.
        listener.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    connections = _Connections(application)
    async with trio.open_nursery() as serving:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(partial(trio.serve_listeners, connections.serve, [listener], handler_nursery=serving))
            host, port = listener.socket.getsockname()[:2]
            task_status.started(Address(host, port))
            if stop is None:
                await trio.sleep_forever()
            else:
                await stop.wait()
            accepting.cancel_scope.cancel()
        await connections.stop()
        serving.cancel_scope.deadline = trio.current_time() + STOP_SECONDS_MAX


class _Connections:
    """Runs each connection of one listener."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = ASGIWrapper(cast("ASGIFramework", application))
        self._config = Config()
        self._config.logger_class = _Log
        self._config.errorlog = None
        self._config.keep_alive_timeout = IDLE_SECONDS_MAX
        self._config.keep_alive_max_requests = REQUESTS_MAX
        self._config.include_server_header = False
        self._context = WorkerContext(max_requests=None)
        self._count = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, from its beginning to its end; never raises what a peer can cause."""
        if self._count >= CONNECTIONS_MAX:
            log.warning("http connection refused", connections=self._count)
            return
        self._count += 1
        try:
            with trio.move_on_after(CONNECTION_SECONDS_MAX):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_close_when_cancelled, stream)
                    # Hypercorn's annotation says TLS; it tells the two apart when it runs.
                    either = cast("trio.SSLStream[trio.SocketStream]", stream)
                    await TCPServer(self._application, self._config, self._context, ConnectionState({}), either).run()
                    nursery.cancel_scope.cancel()
        except* Exception as errors:
            # What peers send causes these, so each costs the log one line; the application's have their own traceback.
            log.warning("http connection failed", causes=[repr(cause) for cause in _causes(errors)])
        finally:
            self._count -= 1

    async def stop(self) -> None:
        """Let idle connections end now and busy ones after their current request."""
        await self._context.terminated.set()


async def _close_when_cancelled(stream: trio.SocketStream) -> None:
    # Hypercorn shields what it sends from cancellation, so a peer that reads nothing could hold up the broker's end.
    try:
        await trio.sleep_forever()
    finally:
        stream.socket.close()


def _causes(error: Exception) -> list[Exception]:
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [cause for part in error.exceptions for cause in _causes(part)]


class _Log(Logger):
    """Hypercorn's log, told to ours. Its access log is off by default, and stays so."""

    async def exception(self, message: str, *_: object) -> None:
        """Called while the exception is handled; the log adds its traceback."""
        log.exception("http request failed", said=message)

    async def error(self, message: str, *_: object) -> None:
        """What hypercorn could not do."""
        log.error("http server", said=message)

    async def warning(self, message: str, *_: object) -> None:
        """What hypercorn does otherwise than asked."""
        log.warning("http server", said=message)
