"""Reigns: a broker serves by one metadata session after another, in one process.

Claims, elections and whatever else says what a broker owns hang on its session. When etcd was away for longer than the
session lasts, others may own the topics now. So nothing is served from that moment on: connections are closed, by which
clients reconnect, and every task that rests on the session is cancelled, as by a crash. The next reign begins as a new
process would, with a new session, elections and claims. Listeners, journal and ledger store stay: they rest on no
session, and nobody fences a journal because a session ended.

| what ends a reign                                        | what follows                                       |
|----------------------------------------------------------|----------------------------------------------------|
| the broker is told to stop                               | the end                                            |
| its session is lost                                      | turn clients away; a new session; the next reign   |
| a task of it had no answer from the metadata store       | the same, behind a pause; the old session is ended |
| the metadata store of this process has ended             | raised: only a new process can open it again       |
| anything else                                            | raised                                             |
"""

from collections.abc import Awaitable, Callable

import structlog
import trio
from starlette.types import Receive, Scope, Send

from broker.http.refusals import refusal
from broker.store_retry import RETRY_SECONDS
from storage.metadata.store import MetadataStore, Session, SessionLost, StoreEnded, StoreUnavailable

Reign = Callable[[Session], Awaitable[None]]
"""Serves by a session until the broker is told to stop. Cancelled when the session is lost."""

log = structlog.get_logger(__name__)


async def serve_reigns(
    metadata: MetadataStore,
    first: Session,
    reign: Reign,
    turn_away: Callable[[], Awaitable[None]],
    stop: trio.Event,
    *,
    timeout_seconds: float,
) -> None:
    """Run one reign after another until one returns because of `stop`.

    Args:
        metadata: the store of the sessions.
        first: the session of the first reign.
        reign: one reign.
        turn_away: answers clients between two reigns; cancelled when the next one begins.
        stop: told to stop.
        timeout_seconds: the timeout of the sessions.

    Raises:
        StoreUnavailable: the store of this process has ended.
    """
    session: Session | None = first
    while session is not None:
        ended = await _run(reign, session)
        if ended is None or stop.is_set():
            return
        log.warning("nothing is served until there is a new metadata session", reason=str(ended))
        session = await _next_session(metadata, session, ended, turn_away, stop, timeout_seconds)
        if session is not None:
            log.info("a new metadata session: claims begin anew", session=session.id)


async def _run(reign: Reign, session: Session) -> Exception | None:
    """Run a reign; why it ended early, or None."""
    ended: list[Exception] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_require, session)
            await reign(session)
            nursery.cancel_scope.cancel()
    except* (SessionLost, StoreUnavailable) as lost:
        ended = _errors(lost)
    return ended[0] if ended else None


async def _require(session: Session) -> None:
    await session.wait_lost()
    raise SessionLost(f"session {session.id} has ended")


async def _next_session(
    metadata: MetadataStore,
    before: Session,
    ended: Exception,
    turn_away: Callable[[], Awaitable[None]],
    stop: trio.Event,
    timeout_seconds: float,
) -> Session | None:
    """The next session, however long that takes; None when the broker is told to stop meanwhile."""
    session: Session | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn_away)
        nursery.start_soon(_cancel_at, stop, nursery.cancel_scope)
        is_lost = isinstance(ended, SessionLost)
        while session is None:
            try:
                if not is_lost:
                    # Claims of a reign that ended by itself go at once, and what it could not have is not asked for
                    # again without a pause.
                    await trio.sleep(RETRY_SECONDS)
                    await before.close()
                    is_lost = True
                session = await metadata.open_session(timeout_seconds)
            except StoreEnded:
                raise
            except StoreUnavailable as unanswered:
                log.warning("the metadata store gives no new session", reason=str(unanswered))
                await trio.sleep(RETRY_SECONDS)
        nursery.cancel_scope.cancel()
    return session


async def _cancel_at(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def refuse_http(scope: Scope, receive: Receive, send: Send) -> None:
    """The HTTP application between two reigns: 503 for everything."""
    if scope["type"] == "http":
        reason = "The broker has lost its session in the metadata store and waits for a new one. Check the store."
        await refusal(503, reason)(scope, receive, send)


async def close_connections(listener: trio.SocketListener) -> None:
    """Accept and close every connection until cancelled: clients come back, by growing delays of their own.

    Left in the listener's queue they would wait for an answer instead, each as long as its operations may take. Takes
    possession of the listener.
    """
    await trio.serve_listeners(trio.SocketStream.aclose, [listener])


def again(listener: trio.SocketListener) -> trio.SocketListener:
    """Another handle of a listening socket: it is served by one reign after another, and each closes its own."""
    return trio.SocketListener(listener.socket.dup())


def _errors(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    return [
        inner
        for error in group.exceptions
        for inner in (_errors(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
