"""Which failures of background work are retriable."""

from pathlib import Path

import pytest

from broker.errors import TopicClosed, TopicNotFound
from broker.store_retry import is_retriable
from storage.cursor import CursorFailed
from storage.errors import LedgerCorrupt
from storage.metadata.store import StoreUnavailable
from txn.errors import OwnershipLost


def following(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (StoreUnavailable("away"), True),
        (OwnershipLost("taken over"), True),
        (TopicClosed("unloaded"), True),
        (following(CursorFailed("not written"), StoreUnavailable("away")), True),
        (following(TopicClosed("no longer served"), OwnershipLost("taken over")), True),
        (TopicNotFound("gone"), False),
        (LedgerCorrupt(Path("1.ledger"), 1, "a flipped bit"), False),
        (following(TopicClosed("no longer served"), LedgerCorrupt(Path("1.ledger"), 1, "a flipped bit")), False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_which_failures_are_retriable(error: Exception, retriable: bool) -> None:
    """E11: damage does not, whatever followed from it."""
    assert is_retriable(error) is retriable
