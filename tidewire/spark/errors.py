"""The data source's own errors, besides those that every client raises (`tidewire.protocol`).

Spark shows users the text of what its Python processes raise. So the text is the interface here: it names the broker,
the topic or the option, and says what to do where that helps.
"""

from tidewire.protocol.errors import TidewireError


class InvalidOption(TidewireError, ValueError):
    """An option is missing or unknown, or its value is not allowed."""


class UnreadableMessage(TidewireError):
    """A message fails its checksum or cannot be decoded."""


class UnreadableSchema(TidewireError):
    """The topic has no schema, or one without an equivalent Spark type."""


class UnsupportedSpark(TidewireError, ImportError):
    """This Python has no PySpark, or one without the Data Source API."""


class LibraryMissing(TidewireError):
    """A required package is not installed in the Python that Spark uses."""


class DataLost(TidewireError):
    """Unread messages are gone: their topic was deleted, or their segment or its beginning was removed."""


class SubscriptionTaken(TidewireError):
    """Another process holds the subscription of a query or job, so a second one of its name may be running."""


class UnwritableColumns(TidewireError):
    """A data frame has columns that do not fit into messages."""


class UnwritableRow(TidewireError):
    """A row cannot be a message: it is too large, or holds something that a message cannot hold."""


class WriteFailed(TidewireError):
    """A task's rows are not stored, or that is unknown. Its transaction is not committed, so the task may run again."""


class CommitFailed(TidewireError):
    """A batch is not committed, or no broker answered whether it is. The text says whether a rerun is safe."""


def no_topic(topic: str, where: str = "") -> str:
    """The sentence for a topic that does not exist, and how to create it."""
    # Producers create regular topics.
    advice = f"; `tidewire topics create {topic}` makes it" if topic.startswith("topic://") else ""
    return f"there is no topic {topic}{where}{advice}"
