"""What happens to sends that are unanswered when their producer's session ends.

A broker answers all sends that it stores before it reports the segment as sealed, and before it closes a sealed
segment's producer. So a send that is unanswered by then is not stored. After any other end, a send may be stored or
not. Outside transactions the client resends it. A message may then arrive twice, but none is lost. In a transaction, a
second copy would count, so the client resends it only if the broker recognises duplicates.
"""

from enum import Enum
from typing import Final

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class End(Enum):
    """How a producer's session ended."""

    SEALED = "the broker reported that the segment is sealed"
    CLOSED = "the broker closed the producer, because the segment moves or the disk is full"
    LOST = "the connection ended"


class Fate(Enum):
    """What happens to an unanswered send."""

    TO_CHILDREN = "it is not stored; resend it to the segment that takes its key now, under that producer's ids"
    AGAIN = "resend it to the same segment, before all later sends, with the same sequence id"
    UNKNOWN = "it may be stored or not; it fails, and its transaction fails"


_COLUMNS: Final = ("outside", "remembered", "forgotten")
_ROWS: Final = {
    End.SEALED: (Fate.TO_CHILDREN, Fate.TO_CHILDREN, Fate.TO_CHILDREN),
    End.CLOSED: (Fate.AGAIN, Fate.AGAIN, Fate.UNKNOWN),
    # Bytes of a lost connection may still reach the broker after the next session has learned the remembered id.
    End.LOST: (Fate.AGAIN, Fate.UNKNOWN, Fate.UNKNOWN),
}

FATES: Final = {(end, column): fate for end, row in _ROWS.items() for column, fate in zip(_COLUMNS, row, strict=True)}
"""By the session's end and a column: outside transactions, or in one whose producer the broker remembers or forgot."""

SEALING: Final = frozenset({pb.ServerError.TopicTerminatedError, pb.ServerError.TopicNotFound})
"""The codes with which a broker refuses a send or a producer on a sealed or removed segment."""


def fate(end: End, *, in_transaction: bool, is_remembered: bool = False) -> Fate:
    """Return what happens to a send that was unanswered when its producer's session ended.

    Args:
        end: how the session ended.
        in_transaction: whether the send belongs to a transaction.
        is_remembered: whether the broker recognises a duplicate of the send; see `remembers`.
    """
    return FATES[end, "outside" if not in_transaction else "remembered" if is_remembered else "forgotten"]


def remembers(answered_upto: int, remembered_upto: int) -> bool:
    """Return whether the broker that reopens a producer recognises duplicates of its unanswered sends.

    Args:
        answered_upto: the highest sequence id with a receipt; -1 for none.
        remembered_upto: the highest sequence id that the broker names as it reopens the producer; -1 for none.
    """
    return 0 <= answered_upto <= remembered_upto
