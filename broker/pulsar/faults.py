"""How the rooms' errors read on Pulsar's wire: one table, so that the same mistake gets the same answer everywhere."""

from typing import NamedTuple

from broker.cluster.ownership import OwnedElsewhere
from broker.errors import (
    BrokerError,
    ClosedMeanwhile,
    CredentialsUnchecked,
    IncompatibleSchema,
    IntentOpen,
    LayoutUnreadable,
    NotSupported,
    ProducerNameTaken,
    SchemaNotFound,
    SegmentBusy,
    SendInDoubt,
    SubscriptionEnding,
    SubscriptionNotFound,
    TopicClosed,
    TopicNotFound,
)
from broker.names import InvalidTopicName
from dispatch.subscription import AcknowledgementRefused, ConsumerBusy, SubscriptionClosed, TooManyHoles
from storage.cursor import CursorError
from storage.errors import (
    CursorCorrupt,
    IdentityMismatch,
    JournalContended,
    JournalDamaged,
    JournalMissing,
    LedgerCorrupt,
    LedgerFailed,
    LedgerNotMade,
    LedgerOutOfReach,
    LedgerSealed,
    NoSpace,
    WriterAlive,
)
from storage.metadata.store import ChangeSetTooLarge, InvalidOperation, MetadataError, StoreUnavailable
from tidewire.wire.pulsar.errors import ChecksumMismatch, MalformedMessage
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.errors import (
    AcknowledgementTooLarge,
    AppliedByAnother,
    AppliedOtherwise,
    CoordinatorNotFound,
    GroupAborted,
    GroupDecides,
    InvalidTxnStatus,
    OutcomeUnknown,
    OwnershipLost,
    PendingAcksDiscarded,
    PendingAcksFull,
    TooManyWinners,
    TransactionConflict,
    TransactionEnded,
    TransactionNotFound,
    WrongDomain,
)

# A code decides what clients do by themselves. They give a request up at NotAllowedError and some others, and repeat it
# at most codes, with growing pauses (`tests/broker/pulsar/test_faults.py` has the list).
_CODES: dict[type[Exception], pb.ServerError] = {
    InvalidTopicName: pb.InvalidTopicName,
    TopicNotFound: pb.TopicNotFound,
    SubscriptionNotFound: pb.SubscriptionNotFound,
    TopicClosed: pb.ServiceNotReady,
    SegmentBusy: pb.ServiceNotReady,
    SubscriptionEnding: pb.ServiceNotReady,
    LayoutUnreadable: pb.MetadataError,
    ClosedMeanwhile: pb.ServiceNotReady,
    OwnedElsewhere: pb.ServiceNotReady,
    OwnershipLost: pb.ServiceNotReady,
    OutcomeUnknown: pb.ServiceNotReady,
    StoreUnavailable: pb.MetadataError,
    MetadataError: pb.MetadataError,
    # For good, while clients take MetadataError for a store that is away.
    ChangeSetTooLarge: pb.NotAllowedError,
    InvalidOperation: pb.NotAllowedError,
    LedgerSealed: pb.TopicTerminatedError,
    LedgerFailed: pb.PersistenceError,
    # All clients take it for "hold what you have, and come back later", by growing delays. It closes no connection, so
    # consumers on it go on. PersistenceError would close it, and its producers would come back at once.
    NoSpace: pb.ProducerBlockedQuotaExceededError,
    LedgerNotMade: pb.ServiceNotReady,
    # Another broker, or this one later, can serve it.
    LedgerOutOfReach: pb.ServiceNotReady,
    WriterAlive: pb.ServiceNotReady,
    JournalContended: pb.ServiceNotReady,
    JournalMissing: pb.PersistenceError,
    JournalDamaged: pb.PersistenceError,
    IdentityMismatch: pb.PersistenceError,
    IncompatibleSchema: pb.IncompatibleSchema,
    # Where Pulsar's clients look: the Java client takes it for "no schema", any other code for a failure.
    SchemaNotFound: pb.TopicNotFound,
    IntentOpen: pb.ServiceNotReady,
    # At any other code clients send it again and again, until the other transaction ends or the send times out. Only
    # the application knows why it uses an id in two transactions. So it is told at once that this copy is not stored.
    SendInDoubt: pb.NotAllowedError,
    ProducerNameTaken: pb.ProducerBusy,
    ConsumerBusy: pb.ConsumerBusy,
    SubscriptionClosed: pb.ServiceNotReady,
    AcknowledgementRefused: pb.NotAllowedError,
    TooManyHoles: pb.TooManyRequests,
    CursorError: pb.ServiceNotReady,
    LedgerCorrupt: pb.PersistenceError,
    CursorCorrupt: pb.PersistenceError,
    ChecksumMismatch: pb.ChecksumError,
    # For good: sent again it would be the same.
    MalformedMessage: pb.NotAllowedError,
    NotSupported: pb.NotAllowedError,
    CredentialsUnchecked: pb.AuthenticationError,
    WrongDomain: pb.NotAllowedError,
    # The Java client fails the one send on NotAllowedError; any code it does not know would close the connection.
    TransactionEnded: pb.NotAllowedError,
    TransactionNotFound: pb.TransactionNotFound,
    TransactionConflict: pb.TransactionConflict,
    AcknowledgementTooLarge: pb.NotAllowedError,
    PendingAcksFull: pb.TooManyRequests,
    PendingAcksDiscarded: pb.ServiceNotReady,
    InvalidTxnStatus: pb.InvalidTxnStatus,
    GroupAborted: pb.InvalidTxnStatus,
    GroupDecides: pb.NotAllowedError,
    TooManyWinners: pb.NotAllowedError,
    AppliedByAnother: pb.NotAllowedError,
    AppliedOtherwise: pb.NotAllowedError,
    CoordinatorNotFound: pb.TransactionCoordinatorNotFound,
    # Whatever else is refused is refused for good.
    BrokerError: pb.NotAllowedError,
}


class Fault(NamedTuple):
    """An error as the wire carries it."""

    code: pb.ServerError
    message: str


def fault_of(error: Exception) -> Fault:
    """The wire's form of an expected error.

    Raises:
        Exception: the error itself, if no room promises to raise it. It ends the connection as a defect of ours.
    """
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return Fault(code, str(error))
    raise error
