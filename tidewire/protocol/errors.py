"""What can go wrong between a client and its broker: the errors that every client raises.

Each class says by its attribute `retriable` whether the same piece of work, begun anew, may succeed without anybody
changing anything. Policy reads from the type, never from a message's text. For a transaction, "begun anew" means a new
transaction; `Client.run_transaction` does exactly that.

    TidewireError
    ├── ConnectFailed           no broker answers at the address
    ├── ConnectionLost          the connection ended with an answer outstanding
    ├── OperationTimedOut       the broker is connected and silent, or no broker could be reached for as long
    ├── ProtocolViolation       the peer says what the protocol does not allow
    ├── UnsupportedBroker       the broker lacks what this client needs
    ├── OutcomeUnknown          a commit or abort stayed unanswered: it may have happened
    ├── InvalidName             a text is no topic's name, or no broker's address (a ValueError as well)
    ├── MessageTooLarge         a message is above what the broker takes (a ValueError as well)
    └── Refused                 the broker's own answer, with its code (refusals.py)

Each client adds its own: `tidewire.client.errors`, `tidewire.spark.errors`. This module imports nothing else, because
Spark imports it wherever it looks for a data source.
"""

from copy import copy
from typing import ClassVar, TypeVar


class TidewireError(Exception):
    """The root of everything the client raises on purpose."""

    retriable: ClassVar[bool] = False
    """Whether the same work, begun anew, may succeed."""


class ConnectFailed(TidewireError):
    """No broker could be reached at the address within the deadline."""

    retriable = True


class ConnectionLost(TidewireError):
    """The connection ended before the answer came; what was asked may or may not have happened."""

    retriable = True


class OperationTimedOut(TidewireError):
    """The broker gave no answer within `operation_timeout_seconds`; it may have happened or not."""

    retriable = True


class ProtocolViolation(TidewireError):
    """The peer sent what the protocol does not allow; its connection was closed."""


class UnsupportedBroker(TidewireError):
    """The broker did not announce a feature that the call needs."""


class OutcomeUnknown(TidewireError):
    """The end of a transaction was asked for and never answered, so that only the broker knows its outcome.

    Whatever it is, it is one: all of the transaction or nothing of it is visible, now or once its time-out has passed.
    """


class InvalidName(TidewireError, ValueError):
    """The text is no topic name, or no broker address, of a kind that this client knows."""


class MessageTooLarge(TidewireError, ValueError):
    """The message with its key and properties is above what the broker takes."""


_Error = TypeVar("_Error", bound=TidewireError)


def fresh(error: _Error) -> _Error:
    """The same error to be raised once more: several tasks may fail for one reason, each with its own traceback."""
    made = copy(error)
    made.__cause__ = error.__cause__
    return made


def is_retriable(error: BaseException) -> bool:
    """Whether everything that went wrong is retriable; a group is when all of its members are."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_retriable(member) for member in error.exceptions)
    return isinstance(error, TidewireError) and error.retriable
