"""The acknowledgements of one transaction on one subscription, command by command, and the subscription's part in them.

Dispatch's subscription is the `AckTarget`, and knows no transaction. The broker connects the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from storage.entry import TxnId
from storage.metadata.store import RecordVersion
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from txn.states import TxnState


class AckTarget(Protocol):
    """The subscription, as its pending acknowledgements see it. No method blocks."""

    @property
    def keeps_order(self) -> bool:
        """Whether giving back one entry resends everything behind it."""

    def require_acknowledgeable(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Return if these could be acknowledged outside a transaction.

        Otherwise raises the subscription's own error.
        """

    def set_aside(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """These are reserved from now on, so no consumer holds them and they are not sent."""

    def take(self, acks: Sequence[EntryAck], *, cumulative: bool) -> list[EntryAck]:
        """Acknowledge them. Returns those that the cursor has no room to remember."""

    def give_back(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """These are no longer reserved. Resend those that are not acknowledged."""


@dataclass(frozen=True, slots=True)
class CommandId:
    """The identity of an ACK command within its transaction and subscription, so that its repeat is recognised.

    Pulsar's clients number their requests per client, not per connection (the Java client from a random start). A
    consumer keeps its name when its client reconnects. So a command with the same name, number and messages is the same
    command. A connection delivers each command once, so a repeat comes by another connection.
    """

    consumer: str
    """The consumer's name. Not empty."""
    request: int
    connection: object = field(default=None, compare=False)
    """The connection it came by, compared by identity; None if that was an earlier owner's."""


@dataclass(eq=False, slots=True)
class Command:
    """What one command acknowledges."""

    acks: Sequence[EntryAck]
    cumulative: bool
    size: int
    """Bytes of its op record."""
    op: RecordVersion | None = None
    """Its op record; None until it is known to be durable."""
    identity: CommandId | None = None
    """None if its repeat cannot be told from another command."""
    reserved: int = 0
    """How many of its acknowledgements are reserved, counted from the first."""
    is_damaged: bool = False
    """Whether its op record cannot be read, so that nobody knows what it acknowledges."""

    def is_repeated_by(self, identity: CommandId, acks: Sequence[EntryAck]) -> bool:
        """Whether a command with single acknowledgements is a repeat of this one."""
        mine = self.identity
        if mine is None or mine != identity or mine.connection is identity.connection:
            return False
        return not self.cumulative and tuple(self.acks) == tuple(acks)


@dataclass(eq=False, slots=True)
class PendingTransaction:
    """The acknowledgements of one transaction on this subscription."""

    txn: TxnId
    commands: list[Command] = field(default_factory=list)
    by_identity: dict[CommandId, Command] = field(default_factory=dict)
    """The commands whose repeat can be recognised."""
    in_flight: int = 0
    """Commands whose op record is being written. Until there are none, a decision is only noted."""
    decided: TxnState | None = None
    is_applied: bool = False
    """Whether the decision is applied, or has begun to be."""
    upto: Position = EARLIEST
    """The highest position that it acknowledged, once the decision is applied."""
    left: list[EntryAck] = field(default_factory=list)
    """For a committed transaction, what the cursor has no room for yet. It stays reserved."""
    is_discarded: bool = False
    """Whether the cursor was moved or removed, so that nothing of this counts."""

    @property
    def ops(self) -> list[RecordVersion]:
        """Its durable op records."""
        return [command.op for command in self.commands if command.op is not None]
