"""The errors of requests to the broker, the same for every front end, and of its start.

Each protocol's front end has one table from these types to its own codes. So the modules behind it raise what happened,
and do not know how it reads on the wire. Errors of names are in `broker.names`, those of transactions in `txn.errors`.
"""

from typing import Final

from storage.errors import ExpectedError

UNEXPECTED: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a damaged record, an unreadable disk or a bug of the broker raises."""


def sentences(message: object) -> str:
    """Return a message, or an error's message, as whole sentences for the user.

    Lower rooms write clauses, because their messages also stand after a colon in other messages.
    """
    text = str(message)
    first_word = text.partition(" ")[0]
    if first_word.isalpha():
        text = text[0].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


class BrokerError(ExpectedError):
    """The base of the broker's errors. The message is for the user who sent the request, in whole sentences."""


class StartError(ExpectedError):
    """The broker cannot start. The message tells the operator what to do; no client ever meets it."""


class NotSupported(BrokerError):
    """A legal request for something this broker does not do; the message says what to do instead, if anything."""


class CredentialsUnchecked(BrokerError):
    """A client sent credentials. This broker does not check any, so accepting them would give a false impression."""


class TopicNotFound(BrokerError):
    """The topic or its segment does not exist."""


class TopicExists(BrokerError):
    """A topic of this name already exists. Nothing was changed."""


class TooFewPartitions(BrokerError):
    """A topic should get no more partitions than it has. Nothing was changed."""


class TopicInUse(BrokerError):
    """The topic was not deleted: it has producers, consumers or subscriptions, and force was not given."""


class OnePartitionOnly(BrokerError):
    """The request concerns one log, and the topic has several. Nothing was changed. Name a partition instead."""


class OldClientsConnected(BrokerError):
    """Clients are connected that cannot follow the topic through its migration, and force was not given."""


class TransactionsOpen(BrokerError):
    """The topic was not migrated: transactions of Kafka's clients are open there, and their markers need the topic."""


class MessageNotFound(BrokerError):
    """A log has no such message."""


class TopicClosed(BrokerError):
    """This broker no longer serves the topic. A lookup finds the broker that serves it next.

    Background work retries its request, unless `retriable` says that the cause is permanent.
    """

    retriable = True

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable


class TopicDamaged(BrokerError):
    """The topic cannot be opened, because stored data is damaged or missing. An operator must repair it first.

    It is not retriable, so clients get the error at once and do not keep retrying.
    """


class ClosedMeanwhile(BrokerError):
    """The client closed the producer or consumer before it was open."""


class SegmentBusy(BrokerError):
    """The segment's previous consumer has not released it yet."""

    retriable = True


class SubscriptionNotFound(BrokerError):
    """The topic has no subscription of this name."""


class SubscriptionInUse(BrokerError):
    """The subscription was not deleted: consumers are connected, and force was not given."""


class SubscriptionEnding(BrokerError):
    """A subscription of this name is being deleted. After that, a new one can be created."""

    retriable = True


class SubscriptionExists(BrokerError):
    """The topic already has a subscription of this name. Nothing was changed."""


class ProducerNameTaken(BrokerError):
    """Another producer of this name is connected to the topic."""


class ProducersFull(BrokerError):
    """A topic cannot deduplicate the sends of one more producer."""

    retriable = True

    def __init__(self, topic: str, producers_max: int) -> None:
        super().__init__(
            f"{topic} deduplicates the sends of at most {producers_max} producers, and that many are connected or have "
            "sends in open transactions. Close producers that are not needed, or use more topics. Then try again."
        )


class OpenSendsFull(BrokerError):
    """So many open transactions have sends on a topic that no more can be deduplicated. Nothing was stored."""

    retriable = True

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"Too many open transactions have messages of too many producers on {topic}. End some of them, and send "
            "the message again."
        )


class SendInDoubt(BrokerError):
    """A send has the producer and sequence id of a send in another, open transaction. It was not stored.

    When that transaction has aborted, a resend is stored. When it has committed, a resend is a duplicate.
    """

    retriable = True

    def __init__(self, producer: str, sequence_id: int, txn_most: int, txn_least: int) -> None:
        super().__init__(
            f"Producer {producer} already sent sequence id {sequence_id} in transaction {txn_most}:{txn_least}, "
            f"which is still open. Resend the message when that transaction has ended."
        )


class IncompatibleSchema(BrokerError):
    """The schema is invalid, or incompatible with the topic's. Nothing was changed."""


class SchemaNotFound(BrokerError):
    """The topic has no schema, or no schema of this version."""


class LayoutError(BrokerError):
    """A change of a scalable topic's layout was refused. Nothing was changed."""


class SegmentCountInvalid(LayoutError):
    """A topic starts with 1 to `broker.layouts.layout.INITIAL_SEGMENTS_MAX` segments."""


class UnknownSegment(LayoutError):
    """The layout has no segment of this id. It never existed, or it was drained and pruned."""


class NotActive(LayoutError):
    """Only an ACTIVE segment can be split or merged."""


class NotAdjacent(LayoutError):
    """Only two different segments whose hash ranges touch can be merged."""


class FewerThanAsked(LayoutError):
    """The merge would leave fewer segments than the topic was created with."""


class TooNarrow(LayoutError):
    """A segment that holds a single hash cannot be split."""


class NotPrunable(LayoutError):
    """Only a SEALED segment without parents can be pruned. An ACTIVE segment takes messages; parents go first."""


class IntentOpen(LayoutError):
    """A split or merge of this topic is in progress. It must finish before another begins."""

    retriable = True


class IntentGone(LayoutError):
    """The split or merge to finish is no longer in progress: another controller ended it."""


class LayoutTooLarge(LayoutError):
    """The layout's record would exceed the metadata store's limit. Prune segments or remove subscriptions."""


class AutoScalePolicyInvalid(LayoutError):
    """A policy for automatic splits and merges has an invalid value, or contradicts itself."""


class NamespaceNotFound(BrokerError):
    """There is no such tenant or namespace."""


class NamespaceExists(BrokerError):
    """A tenant or namespace of this name exists. Nothing was changed."""


class NamespaceInUse(BrokerError):
    """The tenant or namespace is not empty, or must not be deleted. Nothing was changed."""


class RetentionInvalid(BrokerError):
    """A retention policy has an invalid value, or contradicts itself."""


class LayoutUnreadable(LayoutError):
    """A stored layout is damaged, or was written by a newer version of this software."""
