"""Record batches of numbered producers, as Kafka's clients send them, and markers, as coordinators write them."""

import struct
from collections.abc import Sequence
from typing import Final

import google_crc32c

from tidewire.wire.kafka.record_batches import TRANSACTIONAL
from tidewire.wire.kafka.records import Marker, Record, build, build_marker

_ATTRIBUTES: Final = 21
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17


def batch(
    producer: int, epoch: int, sequence: int, count: int = 1, *, in_txn: bool = False, values: Sequence[bytes] = ()
) -> bytes:
    """Make a batch with this many records, or with these values."""
    records = [Record(None, value, 1_000 + number) for number, value in enumerate(values or [b"value"] * count)]
    made = bytearray(build(records))
    if in_txn:
        made[_ATTRIBUTES + 1] |= TRANSACTIONAL
    _PRODUCER.pack_into(made, _PRODUCER_AT, producer, epoch, sequence)
    _CRC.pack_into(made, _CRC_AT, google_crc32c.value(bytes(made[_ATTRIBUTES:])))
    return bytes(made)


def marker(
    producer: int, epoch: int, *, is_commit: bool, coordinator_epoch: int = 0, timestamp_ms: int = 1_000
) -> bytes:
    """Make the marker that ends the producer's transaction."""
    end = Marker(is_commit, coordinator_epoch)
    return build_marker(end, producer_id=producer, producer_epoch=epoch, timestamp_ms=timestamp_ms)
