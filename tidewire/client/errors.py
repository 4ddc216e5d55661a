"""The client's own errors, besides those that every client raises (`tidewire.protocol`).

TidewireError
├── ConnectionLost
│   └── SendUnanswered      the lost answer was a transactional send's: run the transaction again
├── Closed                  this program closed the object
├── MessageTooLarge         (a ValueError as well)
├── MessageCorrupted        a message arrived that cannot be read; it carries its id
├── DataDamaged             the broker cannot read the stored messages that come next
└── TransactionEnded        the transaction has ended or is ending: it takes no more work
"""

from typing import TYPE_CHECKING

from tidewire.protocol.errors import ConnectionLost, TidewireError

if TYPE_CHECKING:
    from tidewire.protocol.positions import MessageId


class SendUnanswered(ConnectionLost):
    """A transactional send was in flight when its connection or its topic's owner went away.

    The topic may or may not hold the message. Sending it again could store it twice, so abort the transaction and run
    it again. A broker whose disk is full closes producers, too. Then a transactional send waits for space if the broker
    stored an earlier send of the producer on the segment and remembers it. The producer's first send on a segment
    fails.
    """


class Closed(TidewireError):
    """The client, producer or consumer was closed by this program."""


class MessageCorrupted(TidewireError):
    """A message arrived that fails its checksum or cannot be divided or decompressed.

    `receive` raises it once, in place of the message; the next `receive` returns the message after it. The entry
    stays unacknowledged. Acknowledge `message_id` to skip it for good.
    """

    def __init__(self, message: str, message_id: "MessageId") -> None:
        """`message_id` names the whole entry."""
        super().__init__(message, message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        """What is wrong with it."""
        return str(self.args[0])


class DataDamaged(TidewireError):
    """The broker cannot read what it should deliver next: a file of its store is damaged or missing.

    `receive` raises it once, after everything that came before the damage. The error names the file, the entries and
    what to do. The subscription stays at its position, and messages of other segments still come. To continue without
    the damaged entries, seek behind them.
    """


class TransactionEnded(TidewireError):
    """The transaction was committed or aborted, or is ending. It takes no more work."""
