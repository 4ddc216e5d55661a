"""Which failures of background work are retriable, and when it retries.

A client that is refused tries again by itself. Background work has no client, and a recovered store emits no event for
a write that it never made.
"""

from typing import Final

from broker.errors import TopicClosed
from storage.errors import StorageError
from storage.metadata.store import StoreUnavailable
from txn.errors import OwnershipLost

RETRY_SECONDS: Final = 5.0
"""How long after a failure the store is asked again. Each question has waited for the answer long enough before."""


def is_store_unavailable(error: BaseException) -> bool:
    """Whether `error`, or a cause of it, says that the metadata store gave no answer. A retry may then succeed."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, StoreUnavailable):
            return True
        found = found.__cause__
    return False


def is_retriable(error: BaseException) -> bool:
    """Whether background work that failed by `error` may succeed when it is tried again, with nobody's help.

    The store gave no answer, or the topic was being unloaded or taken over. Damage does not pass, whatever followed
    from it.
    """
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    if any(isinstance(cause, StorageError) for cause in causes):
        return False
    return any(isinstance(cause, StoreUnavailable | TopicClosed | OwnershipLost) for cause in causes)
