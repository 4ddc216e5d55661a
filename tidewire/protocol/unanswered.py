"""What becomes of sends that are unanswered when their producer's session ends. Certainty decides, not hope.

A broker answers every send that it stores before it says that the segment is sealed, and before it closes the producer
of one. So what is unanswered by then is not stored. After any other end a send may be stored or not. Outside of
transactions it is sent again: a message may come twice, and none is lost. In a transaction a second copy would count,
so it is sent again only where the broker recognises a repeat.
"""

from enum import Enum
from typing import Final

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class End(Enum):
    """How a producer's session ended."""

    SEALED = "the broker has said that the segment takes nothing more"
    CLOSED = "the broker has closed the producer: the segment moves, or there is no space"
    LOST = "the connection has ended"


class Fate(Enum):
    """What becomes of an unanswered send."""

    TO_CHILDREN = "it is not stored: it goes to the segments that hold its keys now, under ids of their producers"
    AGAIN = "it goes to the same segment, before all later ones, under the same sequence id"
    UNKNOWN = "nobody knows whether it is stored: it fails, and with it its transaction"


_COLUMNS: Final = ("outside", "remembered", "forgotten")
_ROWS: Final = {
    End.SEALED: (Fate.TO_CHILDREN, Fate.TO_CHILDREN, Fate.TO_CHILDREN),
    End.CLOSED: (Fate.AGAIN, Fate.AGAIN, Fate.UNKNOWN),
    # What was written to a lost connection may still arrive after the next session has asked what is remembered.
    End.LOST: (Fate.AGAIN, Fate.UNKNOWN, Fate.UNKNOWN),
}

FATES: Final = {(end, column): fate for end, row in _ROWS.items() for column, fate in zip(_COLUMNS, row, strict=True)}
"""By the session's end: of a send outside of transactions, and of one in a transaction by whether the broker remembers
the producer."""

SEALING: Final = frozenset({pb.ServerError.TopicTerminatedError, pb.ServerError.TopicNotFound})
"""Codes by which a broker refuses a send, or a producer, of a segment that takes nothing more or was removed."""


def fate(end: End, *, in_transaction: bool, is_remembered: bool = False) -> Fate:
    """What becomes of a send that was unanswered when its producer's session ended.

    Args:
        end: how it ended.
        in_transaction: whether the send belongs to a transaction.
        is_remembered: whether the broker recognises a repeat of it; see `remembers`.
    """
    return FATES[end, "outside" if not in_transaction else "remembered" if is_remembered else "forgotten"]


def remembers(answered_upto: int, remembered_upto: int) -> bool:
    """Whether a broker that opens a producer again recognises repeats of what is unanswered.

    Args:
        answered_upto: the highest sequence id that the broker has said to have stored; -1 for none.
        remembered_upto: the highest one that it names when it opens the producer again; -1 for none.
    """
    return 0 <= answered_upto <= remembered_upto
