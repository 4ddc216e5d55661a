"""Runs the broker under one metadata session after another, in one process.

Claims, elections and all other records of ownership belong to a session. When etcd is unreachable for longer than the
session's timeout, other brokers may own the topics. So the broker stops serving when its session ends. It closes all
connections, so that clients reconnect. It cancels every task that depends on the session, as a crash would. It closes
its ledgers at once, which needs no metadata store, and does not wait for tasks whose writes are under way. So the
topics' new owners need not fence its journal. Under the next session it starts like a new process, with new elections
and claims. Listeners, journal and ledger store stay open: they do not depend on a session, and the end of a session
does not fence a journal.

| what ends the serving under a session                    | what follows                                       |
|----------------------------------------------------------|----------------------------------------------------|
| the broker is told to stop                               | the end                                            |
| the session is lost                                      | turn clients away until there is a new session     |
| a task of it had no answer from the metadata store       | the same, behind a pause; the old session is ended |
| the metadata store of this process has ended             | raised: only a new process can open it again       |
| anything else                                            | raised                                             |
"""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from storage.metadata.store import MetadataStore, Session, SessionLost, StoreEnded, StoreUnavailable

SESSION_RETRY_SECONDS: Final = 1.0
"""How long after a failure the store is asked for a new session again."""

ServeSession = Callable[[Session], Awaitable[None]]
"""Serves under a session until the broker is told to stop. It is cancelled when the session is lost."""

log = structlog.get_logger(__name__)


async def serve_sessions(
    metadata: MetadataStore,
    first: Session,
    serve: ServeSession,
    leave: Callable[[], Awaitable[None]],
    turn_away: Callable[[], Awaitable[None]],
    stop: trio.Event,
    *,
    timeout_seconds: float,
) -> None:
    """Serve under one session after another, until `stop` makes `serve` return.

    Args:
        metadata: the store that opens the sessions.
        first: the first session.
        serve: serves under one session.
        leave: gives up what a session's end leaves to others. It is called as soon as a session is lost, and once more
            when all work under the session has ended. It needs no metadata store.
        turn_away: refuses clients while there is no session; it is cancelled when there is one.
        stop: set when the broker is to stop.
        timeout_seconds: the timeout of the sessions.

    Raises:
        StoreUnavailable: this process's store has ended.
    """
    session: Session | None = first
    while session is not None:
        ended = await _run(serve, session, leave, stop)
        if ended is None or stop.is_set():
            return
        await leave()
        log.warning("the broker serves no clients until it has a new metadata session", reason=str(ended))
        session = await _next_session(metadata, session, ended, turn_away, stop, timeout_seconds)
        if session is not None:
            log.info("the broker serves again under a new metadata session", session=session.id)


async def _run(
    serve: ServeSession, session: Session, leave: Callable[[], Awaitable[None]], stop: trio.Event
) -> Exception | None:
    """Serve under a session. Return the reason if that ended early, else None."""
    ended: list[Exception] = []
    serving = trio.CancelScope()

    async def end_at_loss() -> None:
        await session.wait_lost()
        serving.cancel()
        # Whoever was about to go on has met the cancellation two steps later. Writes that wait for the store's answer
        # may take longer, and nothing waits for them here.
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        if not stop.is_set():
            await leave()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_at_loss)
            with serving:
                await serve(session)
            if serving.cancel_called:
                ended = [SessionLost(f"session {session.id} has ended")]
            else:
                nursery.cancel_scope.cancel()
    except* (SessionLost, StoreUnavailable) as lost:
        ended = _errors(lost)
    return ended[0] if ended else None


async def _next_session(
    metadata: MetadataStore,
    before: Session,
    ended: Exception,
    turn_away: Callable[[], Awaitable[None]],
    stop: trio.Event,
    timeout_seconds: float,
) -> Session | None:
    """Wait for the next session and return it; None if the broker is told to stop meanwhile."""
    session: Session | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn_away)
        nursery.start_soon(_cancel_at, stop, nursery.cancel_scope)
        is_lost = isinstance(ended, SessionLost)
        while session is None:
            try:
                if not is_lost:
                    # The session is still alive, so release its claims now. Pause first: the store did not answer.
                    await trio.sleep(SESSION_RETRY_SECONDS)
                    await before.close()
                    is_lost = True
                session = await metadata.open_session(timeout_seconds)
            except StoreEnded:
                raise
            except StoreUnavailable as unanswered:
                log.warning("the metadata store did not open a new session; retrying", reason=str(unanswered))
                await trio.sleep(SESSION_RETRY_SECONDS)
        nursery.cancel_scope.cancel()
    return session


async def _cancel_at(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


def _errors(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    return [
        inner
        for error in group.exceptions
        for inner in (_errors(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
