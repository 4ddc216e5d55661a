"""How a group of commands is plugged into a connection, and how a request that fails is answered."""

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
"""Handles one command before the next one of the connection is looked at."""


def request_id_of(command: pb.BaseCommand) -> int:
    """The request id a command carries; NO_REQUEST if its kind has none."""
    request_id: int = getattr(getattr(command, MEMBERS[command.type]), "request_id", NO_REQUEST)
    return request_id


def require_name(whose: str, text: str) -> None:
    """Hold that records can be kept under a name that a client has chosen.

    Raises:
        NotSupported: it is empty or too long, or cannot be shown.
    """
    # The number of characters first, as a client chooses it.
    if not text or len(text) > NAME_BYTES_MAX or len(text.encode()) > NAME_BYTES_MAX:
        raise NotSupported(f"a {whose}'s name has between 1 and {NAME_BYTES_MAX} bytes in UTF-8")
    _require_printable(whose, text)


def require_label(whose: str, text: str) -> None:
    """Hold that a name is short that is kept in memory alone; it may be empty.

    Raises:
        NotSupported: it is too long, or cannot be shown.
    """
    # Twice the length of other names: clients put what they read behind a consumer's name.
    if len(text) > 2 * NAME_BYTES_MAX:
        raise NotSupported(f"a {whose}'s name has at most {2 * NAME_BYTES_MAX} characters")
    _require_printable(whose, text)


def _require_printable(whose: str, text: str) -> None:
    problem = text_problem(text)
    if problem is not None:
        raise NotSupported(f"a {whose} cannot be named {text[:50]!r}: {problem}")


def refuse_by_error(command: pb.BaseCommand, fault: Fault) -> pb.BaseCommand:
    """The answer that fits any request whose client waits under the request's id: ERROR."""
    return commands.error(request_id_of(command), fault.code, fault.message)


def _nothing_to_announce(command: pb.BaseCommand) -> None:
    """For requests that nothing which follows can overtake to its harm."""


class Request(NamedTuple):
    """How one kind of request is served."""

    handle: Callable[[pb.BaseCommand], Awaitable[None]]
    """Answers it by itself when it succeeds; what it raises is answered by `refuse`."""
    refuse: Callable[[pb.BaseCommand, Fault], pb.BaseCommand] = refuse_by_error
    """Makes the answer that says why not; some kinds have an error field of their own, where their clients look."""
    announce: Callable[[pb.BaseCommand], None] = _nothing_to_announce
    """Called in the order of arrival, before `handle` gets a task. Must not block."""


class CommandHandler(Protocol):
    """One group of commands, with the state it keeps for one connection."""

    @property
    def inline(self) -> dict[int, Inline]:
        """What is handled in order of arrival, by command type."""

    @property
    def requests(self) -> dict[int, Request]:
        """What runs as a task of its own, by command type."""

    def close(self) -> Iterator[None]:
        """The connection is gone: give back what was held for it, one piece at each step. Must not block."""
