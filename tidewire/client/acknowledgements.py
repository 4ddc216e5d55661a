"""What a consumer of one segment has acknowledged and not yet told the broker. Pure.

Acknowledging is cheap and so frequent that it pays to tell several at once: of cumulative ones only the last counts,
individual ones share a command. What is here bears no connection's mark; what was not told on one is told on the next.

A message inside a batch is a bit of its entry. The broker is sent the bits that are left, and the entry as a whole when
none are, since some brokers heed only that. Bits are kept for entries acknowledged in part, so memory is bounded by
what the application holds unacknowledged.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from tidewire.protocol.positions import Position
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import ack_set_of_bits, message_id

IDS_PER_COMMAND_MAX: Final = 1000
"""Entries acknowledged by one command."""


class AckCommand(NamedTuple):
    """The content of one ACK."""

    message_ids: list[pb.MessageIdData]
    cumulative: bool


class Acknowledgements:
    """What is still to be told about one segment."""

    __slots__ = ("_confirmed", "_cumulative", "_individual", "_left", "_upto")

    def __init__(self) -> None:
        """Nothing."""
        # The furthest cumulative one so far, and whether it is still to be told.
        self._upto: Position | None = None
        self._cumulative: Position | None = None
        # The furthest one that the broker is known to have taken in.
        self._confirmed: Position | None = None
        # By entry: bits left in batches acknowledged in part; and what is to be told, 0 for a whole entry.
        self._left: dict[tuple[int, int], int] = {}
        self._individual: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        """Whether there is something to tell."""
        return self._cumulative is not None or bool(self._individual)

    @property
    def upto(self) -> Position | None:
        """The furthest cumulative one that is to be told, or was told since messages could last come again."""
        return self._upto

    def add(self, place: Position) -> None:
        """This message."""
        entry = (place.ledger_id, place.entry_id)
        if self._individual.get(entry) == 0:
            # All of it is about to be told; one message more of it is no news.
            return
        left = 0
        if place.batch_index >= 0:
            left = self._left.get(entry, (1 << place.batch_size) - 1) & ~(1 << place.batch_index)
        if left:
            self._left[entry] = left
        else:
            self._left.pop(entry, None)
        self._individual[entry] = left

    def add_upto(self, place: Position) -> bool:
        """This message and all before it. Whether that is news."""
        if self._upto is not None and place.order <= self._upto.order:
            return False
        self._upto = self._cumulative = place
        covered = (place.ledger_id, place.entry_id)
        for entry in [entry for entry in self._left if entry <= covered]:
            del self._left[entry]
        return True

    def rewind(self) -> None:
        """Messages acknowledged before may come again (the broker was told to go back): they will be news again."""
        self._upto = self._cumulative
        self._confirmed = None

    def forget(self) -> None:
        """The subscription is moved: nothing of what was acknowledged, told or not, says anything any more."""
        self._upto = self._cumulative = self._confirmed = None
        self._left.clear()
        self._individual.clear()

    def confirmed(self, place: Position) -> None:
        """The broker has taken in that all is acknowledged up to here."""
        if self._confirmed is None or place.order > self._confirmed.order:
            self._confirmed = place

    def take_to_confirm(self, place: Position) -> list[AckCommand]:
        """As `take`, and at least "up to here", even if that was told before, unless it is confirmed."""
        if self._confirmed is not None and place.order <= self._confirmed.order:
            return []
        self.add_upto(place)
        if self._cumulative is None:
            self._cumulative = place
        return self.take()

    def take(self) -> list[AckCommand]:
        """The commands that tell all of it, once."""
        taken: list[AckCommand] = []
        if self._cumulative is not None:
            taken.append(AckCommand([_upto_id(self._cumulative)], cumulative=True))
            self._cumulative = None
        ids = [_entry_id(entry, left) for entry, left in self._individual.items()]
        self._individual.clear()
        taken.extend(
            AckCommand(ids[start : start + IDS_PER_COMMAND_MAX], cumulative=False)
            for start in range(0, len(ids), IDS_PER_COMMAND_MAX)
        )
        return taken


def together(places: Iterable[Position]) -> AckCommand:
    """Exactly these messages, whatever was acknowledged before: what a transaction is told."""
    left: dict[tuple[int, int], int] = {}
    sizes: dict[tuple[int, int], int] = {}
    for place in places:
        entry = (place.ledger_id, place.entry_id)
        sizes[entry] = place.batch_size
        if place.batch_index < 0:
            left[entry] = 0
        else:
            left[entry] = left.get(entry, (1 << place.batch_size) - 1) & ~(1 << place.batch_index)
    # With their sizes: what two transactions acknowledge of one batch is compared, and bits do not say where it ends;
    # and an entry of which nothing is left is all of its messages, not just those that nobody has acknowledged.
    ids = [
        message_id(*entry, batch_size=sizes[entry], ack_set=ack_set_of_bits(bits) if bits else ())
        for entry, bits in left.items()
    ]
    return AckCommand(ids, cumulative=False)


def upto(place: Position) -> AckCommand:
    """This message and all before it."""
    return AckCommand([_upto_id(place)], cumulative=True)


def _upto_id(place: Position) -> pb.MessageIdData:
    if place.is_whole_entry:
        return message_id(place.ledger_id, place.entry_id)
    behind = (1 << place.batch_size) - (1 << (place.batch_index + 1))
    return message_id(
        place.ledger_id,
        place.entry_id,
        batch_index=place.batch_index,
        batch_size=place.batch_size,
        ack_set=ack_set_of_bits(behind),
    )


def _entry_id(entry: tuple[int, int], left: int) -> pb.MessageIdData:
    return message_id(*entry, ack_set=ack_set_of_bits(left)) if left else message_id(*entry)
