"""The metadata store gave no answer: which failures are that, and when work that nobody asked for is tried again.

A client is told, and asks again itself. What a broker does by itself has nobody who would; and when the store is back,
there is nothing to hear of if what it was asked last was not done.
"""

from typing import Final

from storage.metadata.store import StoreUnavailable

RETRY_SECONDS: Final = 5.0
"""How long after a failure the store is asked again. Each question has waited for the answer long enough before."""


def is_unanswered(error: BaseException) -> bool:
    """Whether `error` says, or follows from, that the metadata store gave no answer, so that trying again may do."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, StoreUnavailable):
            return True
        found = found.__cause__
    return False
