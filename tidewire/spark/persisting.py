"""Doing something again while brokers cannot be reached, as when one restarts: for what may be done twice."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidewire.spark.errors import BrokerSilent, BrokerUnreachable, ConnectionLost, Refused, SourceError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

RETRY_SECONDS: Final = 0.25
"""Between two attempts."""

_Result = TypeVar("_Result")
_PASSING: Final = frozenset(
    {
        pb.ServiceNotReady,
        pb.MetadataError,
        pb.TransactionCoordinatorNotFound,
        pb.TooManyRequests,
        # Its consumer may be of a process that has ended, of which the broker has not heard.
        pb.ConsumerBusy,
    }
)


def passes(error: SourceError) -> bool:
    """Whether it may be otherwise in a while."""
    if isinstance(error, Refused):
        return error.code in _PASSING
    return isinstance(error, (ConnectionLost, BrokerUnreachable, BrokerSilent))


def persistently(
    work: Callable[[], _Result], seconds: float, passes: Callable[[SourceError], bool] = passes
) -> _Result:
    """What `work` returns, which is called again after errors that pass, for so long.

    Raises:
        SourceError: the last one, when the time is over, or one that does not pass.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except SourceError as error:
            if not passes(error) or time.monotonic() >= deadline:
                raise
        # Nobody tells when a broker is back.
        time.sleep(RETRY_SECONDS)  # noqa: TID251
