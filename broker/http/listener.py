"""Accepts HTTP connections, so many at a time, and ends them in good order when the broker stops."""

from functools import partial
from operator import itemgetter
from typing import Final

import structlog
import trio
from starlette.types import ASGIApp

from broker.addresses import Address
from broker.descriptors import HTTP_CONNECTIONS_MAX
from broker.http.connection import HttpConnection
from broker.listening import Accepted, serve_clients

STOP_SECONDS_MAX: Final = 3
"""How long requests that are being answered may go on once the listener is to stop."""

log = structlog.get_logger(__name__)


async def serve_http(
    application: ASGIApp,
    listener: trio.SocketListener,
    *,
    stop: trio.Event | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then refuse new connections, finish what is being answered, and return.

    Cancelling ends everything at once. Either way the listener is closed.

    Args:
        application: as `build_application` makes it. It gets no lifespan events.
        listener: an open socket, of which this takes possession.
        stop: ends it gracefully, within STOP_SECONDS_MAX.
        task_status: told the address that is listened on, with the real port, once connections are accepted.
    """
    connections: set[HttpConnection] = set()

    async def serve(accepted: Accepted) -> None:
        if len(connections) >= HTTP_CONNECTIONS_MAX and not _evict(connections):
            log.warning("http connection refused", connections=len(connections))
            return
        connection = HttpConnection(application, accepted)
        connections.add(connection)
        try:
            await connection.run()
        finally:
            connections.discard(connection)

    async with trio.open_nursery() as serving:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(partial(serve_clients, listener, serve, handler_nursery=serving))
            host, port = listener.socket.getsockname()[:2]
            task_status.started(Address(host, port))
            if stop is None:
                await trio.sleep_forever()
            else:
                await stop.wait()
            accepting.cancel_scope.cancel()
        serving.cancel_scope.deadline = trio.current_time() + STOP_SECONDS_MAX
        for connection in connections:
            connection.stop()


def _evict(connections: set[HttpConnection]) -> bool:
    """Free the place of the client that lets us wait for the longest time; False if none does.

    So clients that send or read slowly cannot keep everybody else out, however many they are.
    """
    idle = [(idleness, connection) for connection in connections if (idleness := connection.idleness) is not None]
    if not idle:
        return False
    _idleness, evicted = min(idle, key=itemgetter(0))
    evicted.evict()
    connections.discard(evicted)
    return True
