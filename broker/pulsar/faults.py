"""Maps the broker's errors to Pulsar's error codes: one table, so the same error has the same code everywhere."""

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
    OpenSendsFull,
    ProducerNameTaken,
    ProducersFull,
    SchemaNotFound,
    SegmentBusy,
    SendInDoubt,
    SubscriptionEnding,
    SubscriptionNotFound,
    TopicClosed,
    TopicNotFound,
    sentences,
)
from broker.names import InvalidTopicName, NonPersistentTopic
from broker.peers import PeerSilent
from dispatch.errors import AcknowledgementRefused, ConsumerBusy, SubscriptionClosed, TooManyHoles
from storage.cursor import CursorError
from storage.errors import (
    CursorCorrupt,
    IdentityMismatch,
    JournalContended,
    JournalDamaged,
    JournalMissing,
    LedgerCorrupt,
    LedgerFailed,
    LedgerListCorrupt,
    LedgerNotMade,
    LedgerOutOfReach,
    LedgerSealed,
    NoSpace,
    RecoveryElsewhere,
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
    OpRecordDamaged,
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

# The code decides what a client does. At NotAllowedError and a few others it gives up; at most codes it retries with
# growing pauses (`tests/broker/pulsar/test_faults.py` has the list).
_CODES: dict[type[Exception], pb.ServerError] = {
    InvalidTopicName: pb.InvalidTopicName,
    # At InvalidTopicName the C++ client looks up again until its timeout. It checks names first, but knows this domain.
    NonPersistentTopic: pb.NotAllowedError,
    TopicNotFound: pb.TopicNotFound,
    SubscriptionNotFound: pb.SubscriptionNotFound,
    TopicClosed: pb.ServiceNotReady,
    SegmentBusy: pb.ServiceNotReady,
    SubscriptionEnding: pb.ServiceNotReady,
    LayoutUnreadable: pb.MetadataError,
    ClosedMeanwhile: pb.ServiceNotReady,
    OwnedElsewhere: pb.ServiceNotReady,
    # A segment's owner, which this broker asked, may have just ended.
    PeerSilent: pb.ServiceNotReady,
    OwnershipLost: pb.ServiceNotReady,
    OutcomeUnknown: pb.ServiceNotReady,
    StoreUnavailable: pb.MetadataError,
    MetadataError: pb.MetadataError,
    # This is permanent. Clients would read MetadataError as a temporary outage of the store, and retry.
    ChangeSetTooLarge: pb.NotAllowedError,
    InvalidOperation: pb.NotAllowedError,
    LedgerSealed: pb.TopicTerminatedError,
    LedgerFailed: pb.PersistenceError,
    # At this code all clients keep their messages and retry with growing delays. They keep the connection open, so its
    # consumers continue. At PersistenceError they would close it, and its producers would reconnect at once.
    NoSpace: pb.ProducerBlockedQuotaExceededError,
    LedgerNotMade: pb.ServiceNotReady,
    # Another broker can serve it now, or this one later.
    LedgerOutOfReach: pb.ServiceNotReady,
    WriterAlive: pb.ServiceNotReady,
    JournalContended: pb.ServiceNotReady,
    RecoveryElsewhere: pb.ServiceNotReady,
    JournalMissing: pb.PersistenceError,
    JournalDamaged: pb.PersistenceError,
    IdentityMismatch: pb.PersistenceError,
    IncompatibleSchema: pb.IncompatibleSchema,
    # The Java client reads this code as "no schema", and any other code as a failure.
    SchemaNotFound: pb.TopicNotFound,
    IntentOpen: pb.ServiceNotReady,
    # At any other code clients resend until the other transaction ends or the send times out. Only the application
    # knows why it uses an id in two transactions. So it learns at once that this copy is not stored.
    SendInDoubt: pb.NotAllowedError,
    # Likewise: only the application can end its transactions.
    OpenSendsFull: pb.NotAllowedError,
    # As at a full disk: clients retry with growing delays, and keep their connection.
    ProducersFull: pb.ProducerBlockedQuotaExceededError,
    ProducerNameTaken: pb.ProducerBusy,
    ConsumerBusy: pb.ConsumerBusy,
    SubscriptionClosed: pb.ServiceNotReady,
    AcknowledgementRefused: pb.NotAllowedError,
    TooManyHoles: pb.TooManyRequests,
    CursorError: pb.ServiceNotReady,
    LedgerCorrupt: pb.PersistenceError,
    LedgerListCorrupt: pb.PersistenceError,
    OpRecordDamaged: pb.PersistenceError,
    CursorCorrupt: pb.PersistenceError,
    ChecksumMismatch: pb.ChecksumError,
    # This is permanent: a resend would be the same.
    MalformedMessage: pb.NotAllowedError,
    NotSupported: pb.NotAllowedError,
    CredentialsUnchecked: pb.AuthenticationError,
    WrongDomain: pb.NotAllowedError,
    # At NotAllowedError the Java client fails only this send. At an unknown code it would close the connection.
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
    # All other refusals are permanent.
    BrokerError: pb.NotAllowedError,
}


class Fault(NamedTuple):
    """An error in the form for the wire."""

    code: pb.ServerError
    message: str
    """Whole sentences: what happened, to what, and what to do."""


def fault_of(error: Exception) -> Fault:
    """Return an expected error in the form for the wire.

    Raises:
        Exception: the error itself, if it is unexpected. It is a bug of the broker and ends the connection.
    """
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return Fault(code, sentences(error))
    raise error
