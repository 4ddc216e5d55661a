"""Background work that survives errors: a failure is logged, and the work starts again.

`broker.startup_errors` lists what ends the process, with its messages: the journal or the metadata log cannot be
written, or another process fenced a writer. Any other failure ends at most the topic, the connection or the round of
background work in which it happened (E11).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import structlog
import trio

from broker.store_retry import RETRY_SECONDS
from storage.errors import ExpectedError

log = structlog.get_logger(__name__)


async def keep_running(what: str, work: Callable[[], Awaitable[None]]) -> NoReturn:
    """Run background work until cancelled.

    Args:
        what: names it in the log.
        work: the work. At each call it finds what there is to do, as at the start of a broker.
    """
    while True:
        try:
            await work()
        except* Exception as failed:
            reason = first_of(failed)
            if is_environment(reason):
                log.warning("background work failed and is retried", work=what, reason=str(reason))
            else:
                log.error(
                    "background work failed and is retried",
                    work=what,
                    reason=str(reason) or repr(reason),
                    exc_info=failed,
                )
        await trio.sleep(RETRY_SECONDS)


def is_environment(error: BaseException) -> bool:
    """Whether the cause is the disk or another process. Then a warning is enough, because the broker has no bug."""
    return isinstance(error, OSError) or (isinstance(error, ExpectedError) and error.retriable)


def first_of(error: BaseException) -> BaseException:
    """Return the error itself, or the first single error in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def one_error_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose failure comes out as one of the errors, not as a group of them."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except* Exception as failed:
        error = first_of(failed)
    else:
        return
    # A nursery would wrap it in a group, so it is raised outside.
    raise error
