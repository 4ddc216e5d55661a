"""The interface between a connection and its groups of commands, and the responses to failed requests."""

from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, Protocol

from broker.errors import NotSupported
from broker.names import NAME_BYTES_MAX, text_problem
from broker.pulsar.faults import Fault
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import NO_REQUEST
from tidewire.wire.pulsar.parsing import MEMBERS

Inline = Callable[[Frame], Awaitable[None]]
"""Handles one command, before the connection's next command is handled."""


def request_id_of(command: pb.BaseCommand) -> int:
    """Return a command's request id; NO_REQUEST if its type has none."""
    request_id: int = getattr(getattr(command, MEMBERS[command.type]), "request_id", NO_REQUEST)
    return request_id


def require_name(whose: str, text: str) -> None:
    """Check a name that a client has chosen and that becomes the key of a record.

    Raises:
        NotSupported: it is empty or too long, or it cannot be printed.
    """
    # The number of characters is checked first, because the client chooses it.
    if not text or len(text) > NAME_BYTES_MAX or len(text.encode()) > NAME_BYTES_MAX:
        problem = "too long" if text else "empty"
        raise NotSupported(f"The {whose}'s name is {problem}. It must have 1 to {NAME_BYTES_MAX} bytes in UTF-8.")
    _require_printable(whose, text)


def require_label(whose: str, text: str) -> None:
    """Check a name that is kept only in memory. It may be empty.

    Raises:
        NotSupported: it is too long, or it cannot be printed.
    """
    # The limit is twice that of other names, because clients append a topic's name to a consumer's name.
    if len(text) > 2 * NAME_BYTES_MAX:
        raise NotSupported(f"The {whose}'s name is too long. It must have at most {2 * NAME_BYTES_MAX} characters.")
    _require_printable(whose, text)


def _require_printable(whose: str, text: str) -> None:
    problem = text_problem(text)
    if problem is not None:
        raise NotSupported(f"{text[:50]!r} is not a valid name of a {whose}: {problem}.")


def refuse_by_error(command: pb.BaseCommand, fault: Fault) -> pb.BaseCommand:
    """Return ERROR, the response that fits any request with a request id."""
    return commands.error(request_id_of(command), fault.code, fault.message)


def _nothing_to_announce(command: pb.BaseCommand) -> None:
    """The default `announce`: for requests whose order relative to later commands does not matter."""


class Request(NamedTuple):
    """How one type of request is served."""

    handle: Callable[[pb.BaseCommand], Awaitable[None]]
    """Handles the request and responds to it. If it raises, `refuse` makes the response."""
    refuse: Callable[[pb.BaseCommand, Fault], pb.BaseCommand] = refuse_by_error
    """Makes the response for an error. Some response types have their own error field, where their clients look."""
    announce: Callable[[pb.BaseCommand], None] = _nothing_to_announce
    """Called in the order of arrival, before `handle` gets a task. It must not block."""


class CommandHandler(Protocol):
    """One group of commands, with its state for one connection."""

    @property
    def inline(self) -> dict[int, Inline]:
        """Return the handlers of commands that are handled in the order of arrival, by command type."""

    @property
    def requests(self) -> dict[int, Request]:
        """Return the requests that run in their own tasks, by command type."""

    def close(self) -> Iterator[None]:
        """Release everything held for the connection, which has ended, a piece at each step. It must not block."""
