"""Doing something again while brokers cannot be reached, as when one restarts: for what may be done twice."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidewire.protocol.errors import TidewireError
from tidewire.protocol.refusals import TRANSIENT, SubscriptionBusy

RETRY_SECONDS: Final = 0.25
"""Between two attempts."""

_Result = TypeVar("_Result")


def passes(error: TidewireError) -> bool:
    """Whether it may be otherwise in a while."""
    # A subscription may be held by a process that has ended, of which the broker has not heard.
    return isinstance(error, (*TRANSIENT, SubscriptionBusy))


def persistently(
    work: Callable[[], _Result], seconds: float, passes: Callable[[TidewireError], bool] = passes
) -> _Result:
    """What `work` returns, which is called again after errors that pass, for so long.

    Raises:
        TidewireError: the last one, when the time is over, or one that does not pass.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except TidewireError as error:
            if not passes(error) or time.monotonic() >= deadline:
                raise
        # Nobody tells when a broker is back.
        time.sleep(RETRY_SECONDS)  # noqa: TID251
