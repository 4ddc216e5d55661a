"""What a broker answers instead of doing what it was asked: one class for each code that policy tells apart.

The one table from the protocol's codes to classes stands here, and with it what may be asked again a little later.
"""

from typing import Final

from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, TidewireError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


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


TRANSIENT: Final = (ConnectFailed, ConnectionLost, OperationTimedOut, BrokerBusy)
"""What asking again a little later may cure."""

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
