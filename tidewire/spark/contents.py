"""The messages in entries, as columns: plain batches many at a time, all others by the codec."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.plain_batches import PlainColumns, Times, read_plain
from tidewire.spark.receiving import ReceivedEntry
from tidewire.wire.pulsar.building import CHUNKED_MESSAGE_SIZE_MAX
from tidewire.wire.pulsar.errors import MessageError
from tidewire.wire.pulsar.messages import SingleMessage, open_body, split_body

Indexes = np.ndarray[Any, np.dtype[np.int32]]

NO_BATCH: Final = -1
"""The batch index of a message that was sent alone."""

_MESSAGE_BYTES_MIN: Final = 6
"""The smallest size of a message in a batch."""


class Opened(NamedTuple):
    """A decompressed entry."""

    entry: ReceivedEntry
    body: bytes | bytearray | memoryview
    """Not compressed."""
    messages: list[SingleMessage] | None
    """The visible messages, if the codec had to read them; None for what looks like a plain batch."""

    @property
    def messages_max(self) -> int:
        """How many messages the entry claims to have, at most."""
        return self.entry.metadata.num_messages_in_batch if self.messages is None else len(self.messages)


class Contents(NamedTuple):
    """What differs between the messages of entries, in order."""

    rows: list[int]
    """The number of messages in each entry."""
    batch_indexes: Indexes
    """Each message's index in its batch, or NO_BATCH."""
    keys: pa.StringArray
    values: pa.BinaryArray
    event_times_ms: Times
    """0 for none."""
    properties: dict[int, dict[str, str]]
    """By the message's number, only for messages that have properties."""


def open_entry(entry: ReceivedEntry) -> Opened:
    """Decompress the entry, and split it unless it looks like a plain batch.

    Raises:
        MessageError: it cannot be read.
    """
    metadata = entry.metadata
    body = open_body(metadata, entry.body, size_max=CHUNKED_MESSAGE_SIZE_MAX)
    looks_plain = (
        metadata.HasField("num_messages_in_batch")
        and 1 <= metadata.num_messages_in_batch <= len(body) // _MESSAGE_BYTES_MIN
        and not entry.ack_set
        and not metadata.compacted_batch_indexes
    )
    return Opened(entry, body, None if looks_plain else _split(entry))


def read_contents(entries: Iterable[Opened]) -> Contents:
    """The messages of at least one entry.

    Raises:
        UnreadableMessage: an entry is damaged; the error gives its position.
    """
    collected = _Collected()
    for looks_plain, alike in groupby(entries, key=lambda opened: opened.messages is None):
        run = list(alike)
        if not looks_plain:
            for opened in run:
                collected.take_messages(opened.messages or [])
        elif not collected.take_plain(run):
            for opened in run:
                if len(run) == 1 or not collected.take_plain([opened]):
                    collected.take_messages(_split_named(opened.entry))
    return collected.contents()


class _Collected:
    """Columns in pieces, and the messages that are not in a piece yet."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._count = 0
        self._indexes: list[Indexes] = []
        self._pieces: list[PlainColumns] = []
        self._properties: dict[int, dict[str, str]] = {}
        self._messages: list[SingleMessage] = []

    def take_plain(self, run: Sequence[Opened]) -> bool:
        """Read batches. Returns False, and takes nothing, when one of them is not plain."""
        counts = [opened.messages_max for opened in run]
        columns = read_plain([opened.body for opened in run], counts)
        if columns is None:
            return False
        self._make_piece()
        self._pieces.append(columns)
        self._rows += counts
        firsts = np.cumsum([0, *counts[:-1]])
        self._indexes.append((np.arange(len(columns.values)) - np.repeat(firsts, counts)).astype(np.int32))
        self._count += len(columns.values)
        return True

    def take_messages(self, messages: Sequence[SingleMessage]) -> None:
        """Take the messages of one entry."""
        for number, message in enumerate(messages, self._count):
            if message.properties:
                self._properties[number] = message.properties
        self._messages += messages
        self._rows.append(len(messages))
        self._count += len(messages)

    def contents(self) -> Contents:
        """Everything taken so far."""
        self._make_piece()
        keys, values, times = zip(*self._pieces, strict=True) if self._pieces else ((), (), ())
        return Contents(
            self._rows,
            np.concatenate([np.zeros(0, np.int32), *self._indexes]),
            _joined(keys, pa.string()),
            _joined(values, pa.binary()),
            np.concatenate([np.zeros(0, np.uint64), *times]),
            self._properties,
        )

    def _make_piece(self) -> None:
        messages, self._messages = self._messages, []
        if not messages:
            return
        indexes = [NO_BATCH if message.batch_index is None else message.batch_index for message in messages]
        self._indexes.append(np.array(indexes, np.int32))
        self._pieces.append(
            PlainColumns(
                pa.array([message.key for message in messages], pa.string()),
                pa.array([None if message.null_value else message.value for message in messages], pa.binary()),
                np.array([message.event_time_ms or 0 for message in messages], np.uint64),
            )
        )


def _joined(pieces: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays([pa.array([], kind), *pieces])


def _split(entry: ReceivedEntry) -> list[SingleMessage]:
    # The limit for messages holds for the compressed body. Pulsar's clients send and read larger ones.
    return split_body(entry.metadata, entry.body, entry.ack_set, size_max=CHUNKED_MESSAGE_SIZE_MAX)


def _split_named(entry: ReceivedEntry) -> list[SingleMessage]:
    try:
        return _split(entry)
    except MessageError as error:
        raise UnreadableMessage(f"{entry.position}: {error}") from error
