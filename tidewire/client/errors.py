"""Everything the client raises, in one tree, and the one place where a broker's answer becomes an exception.

Each class says by its attribute `retriable` whether the same piece of work, begun anew, may succeed without anybody
changing anything: policy reads from the type, never from a message's text. For a transaction "begun anew" means a new
transaction; `Client.run_transaction` does exactly that.

    TidewireError
    ├── ConnectFailed           nobody answers at the address
    ├── ConnectionLost          the connection ended with an answer outstanding
    │   └── SendUnanswered      ... and it was a transactional send's: its transaction has to be run again
    ├── OperationTimedOut       the broker is connected and silent, or nobody could be reached for as long
    ├── ProtocolViolation       the peer says what the protocol does not allow
    ├── UnsupportedBroker       the broker lacks what this client needs
    ├── Closed                  the object was closed by this program
    ├── InvalidName             a topic's name or a broker's address is not one (a ValueError as well)
    ├── MessageTooLarge         (a ValueError as well)
    ├── MessageCorrupted        a message arrived that cannot be read; it carries its id
    ├── DataDamaged             the broker cannot read stored messages that would come next
    ├── TransactionEnded        the transaction is over or ending: nothing may be added to it
    ├── OutcomeUnknown          a commit or abort stayed unanswered: it may have happened
    └── Refused                 the broker's own answer, with its code; one class for each code that policy tells apart
"""

from copy import copy
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

if TYPE_CHECKING:
    from tidewire.client.message import MessageId


class TidewireError(Exception):
    """The root of everything the client raises on purpose."""

    retriable: ClassVar[bool] = False
    """Whether the same work, begun anew, may succeed."""


class ConnectFailed(TidewireError):
    """No broker could be reached at the address within the deadline."""

    retriable = True


class ConnectionLost(TidewireError):
    """The connection ended before the answer came; what was asked may or may not have happened."""

    retriable = True


class SendUnanswered(ConnectionLost):
    """A send of a transaction was on its way when its connection or its topic's owner went away.

    It may stand in the topic or not, and sending it again could make it stand there twice, so the transaction has to be
    aborted and its work done again in another. A broker whose disk is full closes producers, too. Their transactional
    sends wait for space if the broker stored an earlier send of the producer on the segment and remembers it. The first
    send of a producer on a segment fails.
    """


class OperationTimedOut(TidewireError):
    """The broker gave no answer within the client's `operation_timeout_seconds`; it may have happened or not."""

    retriable = True


class ProtocolViolation(TidewireError):
    """The peer sent what the protocol does not allow; its connection was closed."""


class UnsupportedBroker(TidewireError):
    """The broker did not announce a feature that the call needs."""


class Closed(TidewireError):
    """The client, producer or consumer was closed by this program."""


class InvalidName(TidewireError, ValueError):
    """The text is no topic name, or no broker address, of a kind that this client knows."""


class MessageTooLarge(TidewireError, ValueError):
    """The message with its key and properties is above what the broker takes."""


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


class OutcomeUnknown(TidewireError):
    """The end of a transaction was asked for and never answered, so that only the broker knows its outcome.

    Whatever it is, it is one: all of the transaction or nothing of it is visible, now or once its time-out has passed.
    """


class Refused(TidewireError):
    """The broker answered with an error. `code` is the protocol's ServerError, `reason` the broker's words."""

    def __init__(self, reason: str, code: int) -> None:
        """The broker's own words and code."""
        super().__init__(reason, code)
        self.reason = reason
        self.code = code

    def __str__(self) -> str:
        """The broker's words and the name of its code."""
        name = pb.ServerError.Name(self.code) if self.code in pb.ServerError.values() else str(self.code)
        return f"{self.reason} [{name}]"


class BrokerBusy(Refused):
    """The broker cannot do it at the moment: starting, overloaded, or its store did not answer."""

    retriable = True


class NotPermitted(Refused):
    """Who we are, or that we may do this, was not accepted."""


class NotAllowed(Refused):
    """The broker does not do this at all."""


class TopicNotFound(Refused):
    """There is no such topic."""


class TopicTerminated(Refused):
    """The topic takes no more messages. From a segment of a scalable topic the client goes on to its children."""


class NameTaken(Refused):
    """Another producer of this name is connected to the topic."""


class ProducerFenced(Refused):
    """Another producer took over with exclusive access."""


class SubscriptionBusy(Refused):
    """Another consumer holds the subscription exclusively."""

    retriable = True


class InvalidTopic(Refused):
    """The broker does not accept the topic's name."""


class IncompatibleSchema(Refused):
    """The topic has a schema that this one does not go with."""


class TransactionNotFound(Refused):
    """The broker knows no such transaction: it never was, or ended too long ago."""


class TransactionConflict(Refused):
    """The transaction was ended by its time-out or by somebody else, or collides with another; run it again."""

    retriable = True


_CODE: Final = pb.ServerError
_CLASSES: Final[dict[int, type[Refused]]] = {
    _CODE.MetadataError: BrokerBusy,
    _CODE.PersistenceError: BrokerBusy,
    _CODE.AuthenticationError: NotPermitted,
    _CODE.AuthorizationError: NotPermitted,
    _CODE.ConsumerBusy: SubscriptionBusy,
    _CODE.ServiceNotReady: BrokerBusy,
    _CODE.ProducerBlockedQuotaExceededError: BrokerBusy,
    _CODE.ProducerBlockedQuotaExceededException: BrokerBusy,
    _CODE.TopicNotFound: TopicNotFound,
    _CODE.TooManyRequests: BrokerBusy,
    _CODE.TopicTerminatedError: TopicTerminated,
    _CODE.ProducerBusy: NameTaken,
    _CODE.IncompatibleSchema: IncompatibleSchema,
    _CODE.InvalidTopicName: InvalidTopic,
    # Consumers of a subscription are being divided anew.
    _CODE.ConsumerAssignError: BrokerBusy,
    # The coordinator moved; the next look at the assignments names the new place.
    _CODE.TransactionCoordinatorNotFound: BrokerBusy,
    _CODE.InvalidTxnStatus: TransactionConflict,
    _CODE.NotAllowedError: NotAllowed,
    _CODE.TransactionConflict: TransactionConflict,
    _CODE.TransactionNotFound: TransactionNotFound,
    _CODE.ProducerFenced: ProducerFenced,
}


def refusal(code: int, reason: str, *, of_transactional_send: bool = False) -> Refused:
    """The exception for a broker's error answer; codes without a class of their own become `Refused` itself.

    Args:
        code: the protocol's ServerError.
        reason: the broker's words.
        of_transactional_send: brokers refuse a send whose transaction has ended with the code for "not allowed", which
            anywhere else means that asking again is of no use; here a new transaction is.
    """
    if of_transactional_send and code == _CODE.NotAllowedError:
        return TransactionConflict(reason, code)
    return _CLASSES.get(code, Refused)(reason, code)


_Error = TypeVar("_Error", bound=TidewireError)


def fresh(error: _Error) -> _Error:
    """The same error to be raised once more: several tasks may fail for one reason, each with its own traceback."""
    made = copy(error)
    made.__cause__ = error.__cause__
    return made


def is_retriable(error: BaseException) -> bool:
    """Whether everything that went wrong is retriable; a group is when all of its members are."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_retriable(member) for member in error.exceptions)
    return isinstance(error, TidewireError) and error.retriable
