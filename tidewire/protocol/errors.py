"""The errors that every client raises.

The attribute `retriable` of a class says whether the same work may succeed if it is simply repeated. Policy depends on
the type, never on a message's text. For a transaction, to repeat means to run a new transaction, as
`Client.run_transaction` does.

    TidewireError
    ├── ConnectFailed           no broker answers at the address
    ├── ConnectionLost          the connection ended before the answer arrived
    ├── OperationTimedOut       the broker did not answer in time, or none could be reached in time
    ├── ProtocolViolation       the peer broke the protocol
    ├── UnsupportedBroker       the broker lacks a feature that this client needs
    ├── OutcomeUnknown          a commit or abort got no answer; it may have happened
    ├── InvalidName             the text is not a topic's name or a broker's address (also a ValueError)
    ├── MessageTooLarge         the message exceeds the broker's limit (also a ValueError)
    └── Refused                 the broker answered with an error code (refusals.py)

Each client adds its own errors: `tidewire.client.errors`, `tidewire.spark.errors`. This module imports no other module
of the project, because Spark imports it whenever it looks for a data source.
"""

from copy import copy
from typing import ClassVar, TypeVar


class TidewireError(Exception):
    """The base of the errors that clients raise on purpose."""

    retriable: ClassVar[bool] = False
    """Whether the same work may succeed if it is repeated."""


class ConnectFailed(TidewireError):
    """No broker could be reached at the address within the deadline."""

    retriable = True


class ConnectionLost(TidewireError):
    """The connection ended before the answer arrived. The requested change may or may not have happened."""

    retriable = True


class OperationTimedOut(TidewireError):
    """No answer arrived within `operation_timeout_seconds`. The requested change may or may not have happened."""

    retriable = True


class ProtocolViolation(TidewireError):
    """The peer broke the protocol. Its connection was closed."""


class UnsupportedBroker(TidewireError):
    """The broker did not announce a feature that the call needs."""


class OutcomeUnknown(TidewireError):
    """A commit or abort was requested and got no answer. Only the broker knows the outcome.

    The transaction is still atomic: all of it or nothing of it becomes visible, at the latest after its time-out.
    """


class InvalidName(TidewireError, ValueError):
    """The text is not a topic's name, or not a broker's address, in a form that this client knows."""


class MessageTooLarge(TidewireError, ValueError):
    """The message, with its key and properties, exceeds the broker's limit."""


_Error = TypeVar("_Error", bound=TidewireError)


def fresh(error: _Error) -> _Error:
    """Copy an error to raise it again. Several tasks may fail for one reason, each with its own traceback."""
    made = copy(error)
    made.__cause__ = error.__cause__
    return made


def is_retriable(error: BaseException) -> bool:
    """Return whether the error is retriable. A group is retriable if all its members are."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_retriable(member) for member in error.exceptions)
    return isinstance(error, TidewireError) and error.retriable
