"""The acknowledgements of one segment that the consumer has not sent yet. Pure.

Acknowledgements are frequent, so the consumer sends several at once. Only the last cumulative one counts, and
individual ones share a command. They belong to no connection: the next one carries what the last one did not.

A message inside a batch is a bit of its entry. The consumer sends the bits of the messages that are left. When none
are left it sends the whole entry, because some brokers ignore bits. Bits are kept only for partly acknowledged entries,
so the messages that the application has not acknowledged bound the memory.
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
    """What is still to be sent about one segment."""

    __slots__ = ("_confirmed", "_cumulative", "_individual", "_left", "_upto")

    def __init__(self) -> None:
        """Start with no acknowledgements."""
        # The furthest cumulative one so far, and the one that is still to be sent.
        self._upto: Position | None = None
        self._cumulative: Position | None = None
        # The furthest one that the broker has confirmed.
        self._confirmed: Position | None = None
        # By entry: the bits left of partly acknowledged batches; and the bits to send, 0 for a whole entry.
        self._left: dict[tuple[int, int], int] = {}
        self._individual: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        """Whether there is something to send."""
        return self._cumulative is not None or bool(self._individual)

    @property
    def upto(self) -> Position | None:
        """The furthest cumulative one that is unsent, or was sent since the last `rewind`."""
        return self._upto

    def add(self, place: Position) -> None:
        """Acknowledge this message."""
        entry = (place.ledger_id, place.entry_id)
        if self._individual.get(entry) == 0:
            # The whole entry is about to be sent, and this message with it.
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
        """Acknowledge this message and all before it. Returns whether this adds anything."""
        if self._upto is not None and place.order <= self._upto.order:
            return False
        self._upto = self._cumulative = place
        covered = (place.ledger_id, place.entry_id)
        for entry in [entry for entry in self._left if entry <= covered]:
            del self._left[entry]
        return True

    def rewind(self) -> None:
        """The broker may redeliver messages that were acknowledged before, so they have to be acknowledged again."""
        self._upto = self._cumulative
        self._confirmed = None
        # The bits that were sent are the broker's to remember. After a seek, it redelivers their messages, too.
        self._left = {entry: left for entry, left in self._individual.items() if left}

    def forget(self) -> None:
        """The subscription has moved. Drop all acknowledgements, sent or not: they no longer apply."""
        self._upto = self._cumulative = self._confirmed = None
        self._left.clear()
        self._individual.clear()

    def confirmed(self, place: Position) -> None:
        """The broker has confirmed everything up to `place`."""
        if self._confirmed is None or place.order > self._confirmed.order:
            self._confirmed = place

    def take_to_confirm(self, place: Position) -> list[AckCommand]:
        """As `take`, but at least "up to `place`": even if that was sent before, unless it is confirmed."""
        if self._confirmed is not None and place.order <= self._confirmed.order:
            return []
        self.add_upto(place)
        if self._cumulative is None:
            self._cumulative = place
        return self.take()

    def take(self) -> list[AckCommand]:
        """The commands for everything that is unsent; it counts as sent from now on."""
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
    """Exactly these messages, whatever was acknowledged before. A transaction acknowledges this way."""
    left: dict[tuple[int, int], int] = {}
    sizes: dict[tuple[int, int], int] = {}
    for place in places:
        entry = (place.ledger_id, place.entry_id)
        sizes[entry] = place.batch_size
        if place.batch_index < 0:
            left[entry] = 0
        else:
            left[entry] = left.get(entry, (1 << place.batch_size) - 1) & ~(1 << place.batch_index)
    # The sizes are needed because brokers compare what two transactions acknowledge of one batch, and bits do not say
    # where a batch ends. An entry without bits means all of its messages, even those acknowledged before.
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
