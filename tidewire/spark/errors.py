"""What the data source raises besides the errors that every client raises (`tidewire.protocol`).

Spark shows a user the text of whatever is raised in its Python processes, so the text is the interface here: it names
the broker, the topic or the option, and where it helps what to do.
"""

from tidewire.protocol.errors import TidewireError


class InvalidOption(TidewireError, ValueError):
    """An option is missing, unknown, or has a value that it cannot have."""


class UnreadableMessage(TidewireError):
    """A message was read that fails its checksum or cannot be taken apart."""


class UnreadableSchema(TidewireError):
    """The topic has no schema, or one that there is no Spark type for."""


class LibraryMissing(TidewireError):
    """A package that is needed for this is not installed in the Python that Spark has started."""


class DataLost(TidewireError):
    """Messages that were to be read are gone: their topic was deleted, or their segment or its beginning removed."""


class SubscriptionTaken(TidewireError):
    """The subscription of a query or a job is held by somebody else, so another one of its name may be running."""


class UnwritableColumns(TidewireError):
    """A data frame has columns that no messages can be made of."""


class UnwritableRow(TidewireError):
    """A row is no message that a broker would take."""


class WriteFailed(TidewireError):
    """A task's rows are not, or not surely, stored; its transaction is not committed, and the task may run again."""


class CommitFailed(TidewireError):
    """A batch is not committed, or nobody answered whether it is; its text says whether running it again is safe."""


def no_topic(topic: str, where: str = "") -> str:
    """The sentence on a topic that does not exist, and on what makes one."""
    # Regular topics are made by their producers.
    advice = f"; `tidewire topics create {topic}` makes it" if topic.startswith("topic://") else ""
    return f"there is no topic {topic}{where}{advice}"
