"""Everything the data source raises on purpose, each with one sentence that says what is wrong and where.

Spark shows a user the text of whatever is raised in its Python processes, so the text is the interface here: it names
the broker, the topic or the option, and where it helps what to do. Policy reads two of these
classes: what broke a connection halfway (`ConnectionLost`) may be cured by another connection, and what a broker
says is not there (`Refused`, by its code) may have been deleted.
"""


class SourceError(Exception):
    """The root of everything the data source raises on purpose."""


class InvalidOption(SourceError, ValueError):
    """An option is missing, unknown, or has a value that it cannot have."""


class BrokerUnreachable(SourceError):
    """No connection to a broker could be made."""


class ConnectionLost(SourceError):
    """A connection that had been made came to its end, or the topic moved away from its broker."""


class BrokerSilent(SourceError):
    """The broker is connected and did not say within the deadline what it has to say."""


class ProtocolViolation(SourceError):
    """The peer said what the protocol does not allow."""


class UnreadableMessage(SourceError):
    """A message was read that fails its checksum or cannot be taken apart."""


class UnreadableSchema(SourceError):
    """The topic has no schema, or one that there is no Spark type for."""


class LibraryMissing(SourceError):
    """A package that is needed for this is not installed in the Python that Spark has started."""


class DataLost(SourceError):
    """Messages that were to be read are gone: their topic was deleted, or their segment or its beginning removed."""


class SubscriptionTaken(SourceError):
    """The subscription of a query or a job is held by somebody else, so another one of its name may be running."""


class Refused(SourceError):
    """The broker answered with an error, in its own words, with the name of its code."""

    code: int = -1
    """The protocol's number of it."""


class UnwritableColumns(SourceError):
    """A data frame has columns that no messages can be made of."""


class UnwritableRow(SourceError):
    """A row is no message that a broker would take."""


class WriteFailed(SourceError):
    """A task's rows are not, or not surely, stored; its transaction is not committed, and the task may run again."""


class CommitFailed(SourceError):
    """A batch is not committed, or nobody answered whether it is; its text says whether running it again is safe."""


def no_topic(topic: str, where: str = "") -> str:
    """The sentence on a topic that does not exist, and on what makes one."""
    # Regular topics are made by their producers.
    advice = f"; `tidewire topics create {topic}` makes it" if topic.startswith("topic://") else ""
    return f"there is no topic {topic}{where}{advice}"
