"""The errors that a broker answers with: one class for each code that clients treat differently.

The only table from the protocol's codes to classes is here, with the list of transient errors.
"""

from typing import Final

from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, TidewireError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class Refused(TidewireError):
    """The broker answered with an error. `code` is the protocol's ServerError, `reason` the broker's message."""

    def __init__(self, reason: str, code: int) -> None:
        """Make the error from the broker's message and code."""
        super().__init__(reason, code)
        self.reason = reason
        self.code = code

    def __str__(self) -> str:
        """Return the broker's message and the name of its code, without a final period, so that it can be embedded."""
        name = pb.ServerError.Name(self.code) if self.code in pb.ServerError.values() else str(self.code)
        return f"{self.reason.rstrip('.')} [{name}]"


class BrokerBusy(Refused):
    """The broker cannot serve the request now: it starts, is overloaded, or cannot reach its store."""

    retriable = True


class BrokerFull(BrokerBusy):
    """The broker takes no messages now: its disk is full, or it remembers no more producers. Reading goes on.

    Clients keep their messages and try again until the broker has space. `reason` says what to free.
    """


class NotPermitted(Refused):
    """The broker did not accept the client's identity, or does not permit the request."""


class NotAllowed(Refused):
    """The broker does not support the request, or never allows it."""


class TopicNotFound(Refused):
    """The topic does not exist."""


class TopicTerminated(Refused):
    """The topic takes no more messages. At a sealed segment, the client continues with the segment's children."""


class NameTaken(Refused):
    """Another producer of this name is connected to the topic."""


class ProducerFenced(Refused):
    """Another producer has taken exclusive access to the topic."""


class SubscriptionBusy(Refused):
    """Another consumer holds the subscription exclusively."""

    retriable = True


class InvalidTopic(Refused):
    """The broker does not accept the topic's name."""


class IncompatibleSchema(Refused):
    """The schema is incompatible with the topic's schema."""


class TransactionNotFound(Refused):
    """The broker does not know the transaction. It never existed, or it ended too long ago."""


class TransactionConflict(Refused):
    """The transaction was ended by its time-out or another client, or it conflicts with another one. Run it again."""

    retriable = True


TRANSIENT: Final = (ConnectFailed, ConnectionLost, OperationTimedOut, BrokerBusy)
"""Errors after which the same request may succeed a little later."""

_CODE: Final = pb.ServerError
_CLASSES: Final[dict[int, type[Refused]]] = {
    _CODE.MetadataError: BrokerBusy,
    _CODE.PersistenceError: BrokerBusy,
    _CODE.AuthenticationError: NotPermitted,
    _CODE.AuthorizationError: NotPermitted,
    _CODE.ConsumerBusy: SubscriptionBusy,
    _CODE.ServiceNotReady: BrokerBusy,
    _CODE.ProducerBlockedQuotaExceededError: BrokerFull,
    _CODE.ProducerBlockedQuotaExceededException: BrokerFull,
    _CODE.TopicNotFound: TopicNotFound,
    _CODE.TooManyRequests: BrokerBusy,
    _CODE.TopicTerminatedError: TopicTerminated,
    _CODE.ProducerBusy: NameTaken,
    _CODE.IncompatibleSchema: IncompatibleSchema,
    _CODE.InvalidTopicName: InvalidTopic,
    # The subscription's consumers are being reassigned.
    _CODE.ConsumerAssignError: BrokerBusy,
    # The coordinator moved. The next assignments name its new broker.
    _CODE.TransactionCoordinatorNotFound: BrokerBusy,
    _CODE.InvalidTxnStatus: TransactionConflict,
    _CODE.NotAllowedError: NotAllowed,
    _CODE.TransactionConflict: TransactionConflict,
    _CODE.TransactionNotFound: TransactionNotFound,
    _CODE.ProducerFenced: ProducerFenced,
}


def refusal(code: int, reason: str, *, of_transactional_send: bool = False) -> Refused:
    """Make the exception for a broker's error. A code without its own class becomes a plain `Refused`.

    Args:
        code: the protocol's ServerError.
        reason: the broker's message.
        of_transactional_send: whether a send in a transaction was refused. If that transaction has ended, brokers
            answer NotAllowedError. Elsewhere this code is permanent, but here a new transaction can succeed.
    """
    if of_transactional_send and code == _CODE.NotAllowedError:
        return TransactionConflict(reason, code)
    return _CLASSES.get(code, Refused)(reason, code)
