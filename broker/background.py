"""Background work that no error ends: what fails is said in the log, and the work begins anew.

`broker.startup_errors` lists what ends the process, with its messages: the journal or the metadata log cannot be
written, or another process fenced a writer. Any other failure ends at most the topic, the connection or the round of
background work in which it happened (E11).
"""

from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import structlog
import trio

from broker.store_retry import RETRY_SECONDS
from storage.errors import ExpectedError

log = structlog.get_logger(__name__)


UNEXPECTED: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a damaged record, a disk that cannot be read or a defect of ours raises, in whatever they are met."""


async def keep_running(what: str, work: Callable[[], Awaitable[None]]) -> NoReturn:
    """Run background work until cancelled.

    Args:
        what: names it in the log.
        work: the work. It takes up whatever there is to do each time it is called, as it does when a broker starts.
    """
    while True:
        try:
            await work()
        except* Exception as failed:
            reason = first_of(failed)
            if is_environment(reason):
                log.warning("background work failed and begins anew", work=what, reason=str(reason))
            else:
                log.error(
                    "background work failed and begins anew",
                    work=what,
                    reason=str(reason) or repr(reason),
                    exc_info=failed,
                )
        await trio.sleep(RETRY_SECONDS)


def is_environment(error: BaseException) -> bool:
    """Whether the disk or another process failed, and not the broker: a warning, and no defect to look for."""
    return isinstance(error, OSError) or (isinstance(error, ExpectedError) and error.retriable)


def first_of(error: BaseException) -> BaseException:
    """The error, or the first plain one in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
