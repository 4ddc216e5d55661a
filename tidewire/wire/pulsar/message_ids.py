"""Message ids on the wire, where 64-bit ids are unsigned and "none" is -1; and the bits of partly acknowledged batches.

The protocol declares ledger and entry ids unsigned. Yet it sends -1 for "before everything" (MessageId.earliest is
ledger -1, entry -1) as the two's complement, 2**64 - 1. Python integers do not wrap, so the conversion is explicit. Ids
are signed in this program, as in Position(-1, -1), and unsigned on the wire.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_WRAP: Final = 1 << 64
_SIGN: Final = 1 << 63

NO_REQUEST: Final = _WRAP - 1
"""The request id of a CLOSE_PRODUCER or CLOSE_CONSUMER that no client requested: -1, unsigned."""


def signed(value: int) -> int:
    """An unsigned 64-bit number from the wire, as the signed number with the same bits."""
    return value - _WRAP if value >= _SIGN else value


def unsigned(value: int) -> int:
    """A signed or unsigned 64-bit number, as the unsigned number with the same bits that the wire takes."""
    return value + _WRAP if value < 0 else value


def message_id(
    ledger: int,
    entry: int,
    *,
    partition: int = -1,
    batch_index: int = -1,
    batch_size: int = 0,
    ack_set: Iterable[int] = (),
) -> pb.MessageIdData:
    """An id for the wire. Every part of it may be -1.

    Args:
        ledger: signed ledger id.
        entry: signed entry id.
        partition: always sent; -1 for a topic without partitions and for a segment.
        batch_index: the message's place in its batch; -1, not sent, for a whole entry.
        batch_size: messages in the batch; 0, not sent, if the entry is no batch.
        ack_set: bits of the batch's messages that are not acknowledged, as signed 64-bit words.
    """
    made = pb.MessageIdData()
    made.ledger_id = unsigned(ledger)
    made.entry_id = unsigned(entry)
    made.partition = partition
    if batch_index >= 0:
        made.batch_index = batch_index
    if batch_size > 0:
        made.batch_size = batch_size
    made.ack_set.extend(ack_set)
    return made


def position(identity: pb.MessageIdData) -> tuple[int, int]:
    """The signed (ledger, entry) of an id from the wire."""
    return signed(identity.ledger_id), signed(identity.entry_id)


def bits_of_ack_set(words: Sequence[int]) -> int:
    """An ack_set as one number: bit i is set while message i of the batch is not acknowledged."""
    return int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")


def ack_set_of_bits(bits: int) -> tuple[int, ...]:
    """The ack_set of such a number: signed 64-bit words, the lowest first, without zeros at the end.

    It has at least one word, because an empty ack_set means that nothing is acknowledged.
    """
    count = max(1, -(-bits.bit_length() // 64))
    words: tuple[int, ...] = struct.unpack(f"<{count}q", bits.to_bytes(count * 8, "little"))
    return words
