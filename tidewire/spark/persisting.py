"""Retries while brokers cannot be reached, for instance during a restart: for work that may be done twice."""

import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

from tidewire.protocol.backoff import Backoff
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.refusals import TRANSIENT, SubscriptionBusy

_Result = TypeVar("_Result")


def passes(error: TidewireError) -> bool:
    """Whether the cause of the error may pass by itself."""
    # The subscription's holder may have died, and the broker may not have noticed yet.
    return isinstance(error, (*TRANSIENT, SubscriptionBusy))


def persistently(
    work: Callable[[], _Result], seconds: float, passes: Callable[[TidewireError], bool] = passes
) -> _Result:
    """Return what `work` returns. After an error that may pass, retry it for `seconds` from then on.

    The time before the first error does not count. A stopped broker may have taken all of it, and another broker has
    taken over by then.

    Raises:
        TidewireError: the last error when the time is over, or one that does not pass.
    """
    deadline: float | None = None
    backoff = Backoff(Random())  # noqa: S311 - spreads attempts, guards nothing
    while True:
        try:
            return work()
        except TidewireError as error:
            now = time.monotonic()
            deadline = now + seconds if deadline is None else deadline
            left_seconds = deadline - now
            if not passes(error) or left_seconds <= 0:
                raise
        # Nothing signals that a broker is back.
        time.sleep(min(backoff.next_delay_seconds(), left_seconds))  # noqa: TID251
