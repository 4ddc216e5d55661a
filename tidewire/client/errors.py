"""What the client raises besides the errors that every client raises (`tidewire.protocol`).

TidewireError
├── ConnectionLost
│   └── SendUnanswered      ... and the answer was a transactional send's: its transaction has to be run again
├── Closed                  the object was closed by this program
├── MessageTooLarge         (a ValueError as well)
├── MessageCorrupted        a message arrived that cannot be read; it carries its id
├── DataDamaged             the broker cannot read stored messages that would come next
└── TransactionEnded        the transaction is over or ending: nothing may be added to it
"""

from typing import TYPE_CHECKING

from tidewire.protocol.errors import ConnectionLost, TidewireError

if TYPE_CHECKING:
    from tidewire.protocol.positions import MessageId


class SendUnanswered(ConnectionLost):
    """A send of a transaction was on its way when its connection or its topic's owner went away.

    It may stand in the topic or not, and sending it again could make it stand there twice, so the transaction has to be
    aborted and its work done again in another. A broker whose disk is full closes producers, too. Their transactional
    sends wait for space if the broker stored an earlier send of the producer on the segment and remembers it. The first
    send of a producer on a segment fails.
    """


class Closed(TidewireError):
    """The client, producer or consumer was closed by this program."""


class MessageCorrupted(TidewireError):
    """A message arrived that fails its checksum or cannot be divided or decompressed.

    Raised once by the `receive` that would have returned it; the next `receive` goes on with the message after it. It
    stays unacknowledged; acknowledging `message_id` skips it for good.
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

    Raised once by `receive`, behind everything that came before the damage. The message names the file, the entries and
    what to do. The subscription stays where it is; other segments' messages still come. A seek behind the damage goes
    on without the entries.
    """


class TransactionEnded(TidewireError):
    """The transaction was committed or aborted, or is being ended: it takes no more work."""
