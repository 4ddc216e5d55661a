"""Accepts a bounded number of HTTP connections, and ends them gracefully when the broker stops."""

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
from broker.ports import NO_PORTS, Ports

STOP_SECONDS_MAX: Final = 3
"""How long requests in progress may take after the listener was told to stop."""

log = structlog.get_logger(__name__)


async def serve_http(
    application: ASGIApp,
    listener: trio.SocketListener,
    *,
    stop: trio.Event | None = None,
    ports: Ports = NO_PORTS,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set. Then refuse new connections, finish the requests in progress, and return.

    A cancellation ends everything at once. In both cases the listener is closed.

    Args:
        application: the result of `build_application`. It gets no lifespan events.
        listener: an open socket; this function closes it.
        stop: ends the serving gracefully, within STOP_SECONDS_MAX.
        ports: where clients that speak another protocol belong.
        task_status: gets the listener's address, with the real port, once connections are accepted.
    """
    connections: set[HttpConnection] = set()

    async def serve(accepted: Accepted) -> None:
        if len(connections) >= HTTP_CONNECTIONS_MAX and not _evict(connections):
            log.warning("http connection refused: too many are open", connections=len(connections))
            return
        connection = HttpConnection(application, accepted, ports)
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
    """Evict the connection that has waited longest for its client. Return False if none waits for its client.

    So slow clients cannot keep other clients out, however many they are.
    """
    idle = [(idleness, connection) for connection in connections if (idleness := connection.idleness) is not None]
    if not idle:
        return False
    _idleness, evicted = min(idle, key=itemgetter(0))
    evicted.evict()
    connections.discard(evicted)
    return True
