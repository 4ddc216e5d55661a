"""What one transaction has acknowledged on one subscription, command by command, and what the subscription does for it.

Dispatch's subscription is the `AckTarget` and knows of no transaction: the broker brings the two together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from storage.entry import TxnId
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from txn.states import TxnState


class AckTarget(Protocol):
    """The subscription, as its pending acknowledgements see it. Nothing of it blocks."""

    @property
    def keeps_order(self) -> bool:
        """Whether giving back one entry sends again everything behind it."""

    def require_acknowledgeable(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Hold that these could be acknowledged outside a transaction; raises the subscription's own error."""

    def set_aside(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """These are reserved from now on: nobody holds them, and they are not sent."""

    def take(self, acks: Sequence[EntryAck], *, cumulative: bool) -> list[EntryAck]:
        """Acknowledge them; those that the cursor has no room to remember, if any."""

    def give_back(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """These are not reserved any more: send again what of them is not acknowledged."""


@dataclass(frozen=True, slots=True)
class CommandId:
    """What identifies an ACK command within its transaction and subscription, so that its repeat is recognised.

    Pulsar's clients number their requests per client and not per connection (the Java client from a random start), and
    a consumer keeps its name when its client reconnects. So a command that comes again with the same name, number and
    messages is the same command. A connection delivers each command once, so a repeat comes by another connection.
    """

    consumer: str
    """The consumer's name, which is not empty."""
    request: int
    connection: object = field(default=None, compare=False)
    """Which connection it came by, to be told from others by identity; None if that was an earlier owner's."""


@dataclass(eq=False, slots=True)
class Command:
    """What one command acknowledges."""

    acks: Sequence[EntryAck]
    cumulative: bool
    size: int
    """Bytes of its op record."""
    key: str | None = None
    """Of its op record; None until that is known to be durable."""
    identity: CommandId | None = None
    """None if a repeat of it cannot be told from another command."""
    reserved: int = 0
    """How many of its acknowledgements are reserved, from the first on."""

    def is_repeated_by(self, identity: CommandId, acks: Sequence[EntryAck]) -> bool:
        """Whether a command that acknowledges single messages is this one, come again."""
        mine = self.identity
        if mine is None or mine != identity or mine.connection is identity.connection:
            return False
        return not self.cumulative and tuple(self.acks) == tuple(acks)


@dataclass(eq=False, slots=True)
class PendingTransaction:
    """What one transaction has on this subscription."""

    txn: TxnId
    commands: list[Command] = field(default_factory=list)
    by_identity: dict[CommandId, Command] = field(default_factory=dict)
    """Those commands whose repeat can be recognised."""
    in_flight: int = 0
    """Commands whose op record is being put. Until there are none, a decision is only noted."""
    decided: TxnState | None = None
    is_applied: bool = False
    """Whether the decision is applied, or has begun to be."""
    upto: Position = EARLIEST
    """The highest position that it acknowledged, once that is applied."""
    left: list[EntryAck] = field(default_factory=list)
    """Of a committed transaction, what the cursor has no room for yet; it stays reserved."""
    is_discarded: bool = False
    """Whether the cursor was moved or removed, so that nothing of this counts any more."""

    @property
    def keys(self) -> list[str]:
        """Its op records."""
        return [command.key for command in self.commands if command.key is not None]
