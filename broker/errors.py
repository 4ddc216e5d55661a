"""What can be wrong with a request to the broker, whichever front end it came through.

Each protocol's front end has one table from these types to its own codes. So the rooms behind it raise what happened
and never how it reads on a wire. Errors of names stand in `broker.names`, those of transactions in `txn.errors`.
"""

from storage.errors import ExpectedError


class BrokerError(ExpectedError):
    """Base of this room's errors. The message is meant for the person who sent the request."""


class NotSupported(BrokerError):
    """A legal request for something this broker does not do; the message says what to do instead, if anything."""


class CredentialsUnchecked(BrokerError):
    """A client brings credentials, which nobody here checks; taken, they would promise what is not so."""


class TopicNotFound(BrokerError):
    """The topic, or the segment of it, does not exist."""


class TopicExists(BrokerError):
    """A topic of this name is there already; nothing was changed."""


class TopicInUse(BrokerError):
    """Deleting was refused because producers, consumers or subscriptions are there and force was not asked for."""


class OldClientsConnected(BrokerError):
    """Clients are connected that will not follow the topic where it goes, and force was not asked for."""


class TopicClosed(BrokerError):
    """The topic is not served here any more. A lookup finds where it is served next.

    Background work repeats its request, unless whoever raises this knows that the topic ended by something that lasts.
    """

    retriable = True

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable


class TopicDamaged(BrokerError):
    """The topic cannot be opened: what it stored is damaged or missing. Somebody has to mend it first.

    Not retriable, so that its clients are told at once and do not ask again and again.
    """


class ClosedMeanwhile(BrokerError):
    """Its own client closed the producer or consumer before it was open."""


class SegmentBusy(BrokerError):
    """The segment's earlier consumer has not let go of it yet."""

    retriable = True


class SubscriptionNotFound(BrokerError):
    """The topic has no subscription of this name."""


class SubscriptionInUse(BrokerError):
    """Deleting was refused because consumers are connected and force was not asked for."""


class SubscriptionEnding(BrokerError):
    """A subscription of this name is being deleted; when that is done, another can be created."""

    retriable = True


class SubscriptionExists(BrokerError):
    """The topic has a subscription of this name already; nothing was changed."""


class ProducerNameTaken(BrokerError):
    """Another producer of this name is connected to the topic."""


class SendInDoubt(BrokerError):
    """A send has the producer and sequence id of one in another transaction, which has not ended; it was not stored.

    It is stored when it is sent again after that transaction aborted, and a repeat after it committed.
    """

    retriable = True

    def __init__(self, producer: str, sequence_id: int, txn_most: int, txn_least: int) -> None:
        super().__init__(
            f"Producer {producer} sent sequence id {sequence_id} before, in transaction ({txn_most},{txn_least}), "
            f"which has not ended. Send it again when that transaction has ended"
        )


class IncompatibleSchema(BrokerError):
    """The schema makes no sense, or does not go with the topic's; nothing was changed."""


class SchemaNotFound(BrokerError):
    """The topic has no schema, or none of this version."""


class LayoutError(BrokerError):
    """A change of a scalable topic's layout was refused; nothing was changed."""


class SegmentCountInvalid(LayoutError):
    """A topic begins with at least one segment and at most `broker.layouts.layout.INITIAL_SEGMENTS_MAX`."""


class UnknownSegment(LayoutError):
    """The layout holds no segment of this id: it never did, or the segment was drained and pruned."""


class NotActive(LayoutError):
    """Only an ACTIVE segment can be split or merged."""


class NotAdjacent(LayoutError):
    """Only two different segments whose hash ranges touch can be merged."""


class TooNarrow(LayoutError):
    """A segment that holds a single hash cannot be split."""


class NotPrunable(LayoutError):
    """Only a SEALED segment without parents is pruned: an ACTIVE one takes messages, ancestors are drained first."""


class IntentOpen(LayoutError):
    """A split or merge of this topic is under way; it is finished before another begins."""

    retriable = True


class IntentGone(LayoutError):
    """The split or merge that was to be finished is not the open one: another controller ended it."""


class LayoutTooLarge(LayoutError):
    """The layout's record would outgrow what the metadata store takes; prune segments or remove subscriptions."""


class AutoScalePolicyInvalid(LayoutError):
    """A policy for automatic splits and merges says something that cannot be, or contradicts itself."""


class RetentionInvalid(BrokerError):
    """A retention policy says something that cannot be, or contradicts itself."""


class LayoutUnreadable(LayoutError):
    """A stored layout is damaged, or was written by a newer version of this software."""
