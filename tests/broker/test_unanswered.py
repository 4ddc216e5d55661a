"""Which failures of background work pass."""

from pathlib import Path

import pytest

from broker.errors import TopicClosed, TopicNotFound
from broker.unanswered import is_passing
from storage.cursor import CursorFailed
from storage.errors import LedgerCorrupt
from storage.metadata.store import StoreUnavailable
from txn.errors import OwnershipLost


def following(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
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
def test_what_passes(error: Exception, passes: bool) -> None:
    """E11: damage does not, whatever followed from it."""
    assert is_passing(error) is passes
