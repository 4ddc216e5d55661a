"""Rows that wait to be sent to a segment, and the frames that carry them."""

from collections import deque
from typing import Final, NamedTuple

import numpy as np

from tidewire.spark.encoding import Rows
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import payload_head
from tidewire.wire.pulsar.frames import encode_frame_head
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

FRAME_ROWS_MAX: Final = 4096
FRAME_BYTES_MAX: Final = 512 * 1024
"""A frame holds no more than these, and no more than its broker accepts, but at least one row."""


class Waiting:
    """Rows in the order of sending."""

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self._pieces: deque[Rows] = deque()

    @property
    def is_full(self) -> bool:
        """Whether there are enough for a full frame."""
        return self.count >= FRAME_ROWS_MAX or self.size_bytes >= FRAME_BYTES_MAX

    def add(self, rows: Rows) -> None:
        """Queue rows behind the others."""
        self._pieces.append(rows)
        self.count += len(rows)
        self.size_bytes += rows.size_bytes

    def take_frame(self, message_bytes_max: int) -> list[Rows]:
        """Take the first rows, as many as fit into a frame to a broker with this limit, and at least one."""
        taken: list[Rows] = []
        rows_left, bytes_left = FRAME_ROWS_MAX, min(FRAME_BYTES_MAX, message_bytes_max)
        while self._pieces and rows_left:
            piece = self._pieces[0]
            ends = piece.ends
            fitting = int(np.searchsorted(ends, ends[0] + bytes_left, side="right")) - 1
            count = min(rows_left, fitting if fitting or taken else 1)
            if count == 0:
                break
            if count < len(piece):
                self._pieces[0] = piece.part(count, len(piece))
                piece = piece.part(0, count)
            else:
                self._pieces.popleft()
            taken.append(piece)
            rows_left -= count
            bytes_left = max(0, bytes_left - piece.size_bytes)
            self.count -= count
            self.size_bytes -= piece.size_bytes
        return taken

    def take_all(self) -> list[Rows]:
        """Take all rows."""
        taken = list(self._pieces)
        self._pieces.clear()
        self.count = self.size_bytes = 0
        return taken


class Producing(NamedTuple):
    """The session that sends frames."""

    producer_id: int
    name: str
    schema_version: bytes
    transaction: tuple[int, int]


class SentFrame(NamedTuple):
    """A frame that is not answered yet."""

    sequence_id: int
    """That of its first message."""
    rows: list[Rows]
    size_bytes: int

    @property
    def last_sequence_id(self) -> int:
        """That of its last message."""
        return self.sequence_id + sum(map(len, self.rows)) - 1


def encode_frame(rows: list[Rows], session: Producing, sequence_id: int, publish_time_ms: int) -> tuple[bytes, bytes]:
    """The bytes that send the rows as one batch, with the sequence ids from `sequence_id` on; in two pieces."""
    count = sum(len(piece) for piece in rows)
    body = b"".join(piece.data for piece in rows)
    last_id = sequence_id + count - 1
    most, least = session.transaction
    metadata = pb.MessageMetadata(
        producer_name=session.name,
        sequence_id=sequence_id,
        highest_sequence_id=last_id,
        publish_time=publish_time_ms,
        uncompressed_size=len(body),
        num_messages_in_batch=count,
        txnid_most_bits=most,
        txnid_least_bits=least,
    )
    if session.schema_version:
        metadata.schema_version = session.schema_version
    command = commands.send(
        session.producer_id, sequence_id, num_messages=count, highest_sequence_id=last_id, txn=session.transaction
    )
    head = payload_head(metadata, body)
    return encode_frame_head(command, len(head) + len(body)) + head, body
