"""Doing something again while brokers cannot be reached, as when one restarts: for what may be done twice."""

import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

from tidewire.protocol.backoff import Backoff
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.refusals import TRANSIENT, SubscriptionBusy

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
    backoff = Backoff(Random())  # noqa: S311 - spreads attempts, guards nothing
    while True:
        try:
            return work()
        except TidewireError as error:
            left_seconds = deadline - time.monotonic()
            if not passes(error) or left_seconds <= 0:
                raise
        # Nobody tells when a broker is back.
        time.sleep(min(backoff.next_delay_seconds(), left_seconds))  # noqa: TID251
