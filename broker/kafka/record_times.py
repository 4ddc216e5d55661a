"""Searches a partition by the times of its records (K39).

Producers choose these times. They need not rise, so no search can halve the log. Instead two bounds say what cannot
have a record that is late enough:

| of                        | it is                                     | made                                  |
|---------------------------|-------------------------------------------|---------------------------------------|
| a ledger                  | `LedgerInfo.latest_record_ms`, durable    | while the ledger takes entries        |
| a block of about 1 MiB    | in memory, of the last ledgers searched   | when a search first reads the ledger  |

So a search reads headers only of ledgers that may have the record, each once, and then one block or a few. Entries of
Pulsar's clients, and a crash, leave the bound of a ledger unknown. Such a ledger is read by the first search.

A batch's header says its latest time. The header is its client's: one that lies only hides its own records. A batch may
inflate to `INFLATED_BYTES_MAX`, so one is inflated at a time, in steps with pauses (E7, E9).
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

import trio

from broker.entry_codecs import Converter
from broker.kafka.entry_codec import INFLATED_BYTES_MAX
from broker.kafka.reading import judged
from broker.topic import Topic
from storage.entry import Entry
from storage.errors import LedgerNotFound
from storage.ledger_record import NO_RECORDS, UNKNOWN_TIME
from storage.managed_ledger import ManagedLedger
from storage.metadata.pacing import paced
from storage.position import Position
from tidewire.wire.kafka.record_batches import BatchHeader, CorruptBatch, UnsupportedFormat, read_header
from tidewire.wire.kafka.records import opened, parse

BLOCK_BYTES: Final = 1024 * 1024
"""A block ends with the entry that gives it so many bytes."""

BLOCKS_MAX: Final = 20_000
"""Blocks in memory, about 300 bytes each. The ledgers that were searched least recently are forgotten."""

ENTRIES_AT_ONCE: Final = 500
RECORDS_AT_ONCE: Final = 500
"""Records, and headers of records, that one step reads."""


class Found(NamedTuple):
    """A record."""

    timestamp_ms: int
    offset: int


NOTHING: Final = Found(-1, -1)


class Block(NamedTuple):
    """Neighbouring entries of one ledger."""

    start: int
    """The number of its first entry."""
    stop: int
    """The number behind its last entry."""
    first_index: int
    latest_ms: int
    """No record in it has a later time."""
    size: int
    """Bytes of its payloads."""


class RecordTimes:
    """The searches of one broker, and what they remember."""

    def __init__(self, convert: Converter) -> None:
        """Set up. `convert` gives entries in Kafka's format."""
        self._convert = convert
        self._blocks: OrderedDict[int, list[Block]] = OrderedDict()
        """The blocks of each ledger from its start on, as far as it was read. The last one may grow."""
        self._inflating = trio.Lock()

    @property
    def block_count(self) -> int:
        """How many blocks are in memory."""
        return sum(map(len, self._blocks.values()))

    async def first_at(self, topic: Topic, timestamp_ms: int, end: int) -> Found:
        """The first record below the offset `end` that is not earlier than this; NOTHING if there is none.

        Raises:
            LedgerCorrupt: the search met damage.
        """
        for ledger, first_index in _ledgers(topic.ledger):
            if first_index >= end:
                break
            if not _may_reach(topic.ledger.latest_record_ms(ledger), timestamp_ms):
                continue
            number = 0
            while (block := await self._block(topic.ledger, ledger, number)) is not None and block.first_index < end:
                number += 1
                if block.latest_ms >= timestamp_ms:
                    found = await self._in_block(topic, ledger, block, end, NOTHING, enough_ms=timestamp_ms)
                    if found.timestamp_ms >= timestamp_ms:
                        return found
        return NOTHING

    async def latest(self, topic: Topic, end: int) -> Found:
        """The first of the latest records below the offset `end`; NOTHING if there is none. Raises as `first_at`."""
        best = NOTHING
        for latest_ms, ledger, first_index in sorted(
            ((topic.ledger.latest_record_ms(ledger), ledger, first) for ledger, first in _ledgers(topic.ledger)),
            # What is unknown comes first, and otherwise what is promising.
            key=lambda each: (each[0] != UNKNOWN_TIME, -each[0], each[2]),
        ):
            if first_index >= end or not (latest_ms == UNKNOWN_TIME or _improves(latest_ms, first_index, best)):
                continue
            blocks: list[Block] = []
            while (block := await self._block(topic.ledger, ledger, len(blocks))) is not None and (
                block.first_index < end
            ):
                blocks.append(block)
            for block in sorted(blocks, key=lambda each: (-each.latest_ms, each.first_index)):
                if _improves(block.latest_ms, block.first_index, best):
                    best = await self._in_block(topic, ledger, block, end, best, enough_ms=None)
        return best

    async def _block(self, source: ManagedLedger, ledger: int, number: int) -> Block | None:
        """The block of this number, as far as it is confirmed now; None if there is none."""
        while True:
            blocks = self._blocks.setdefault(ledger, [])
            self._blocks.move_to_end(ledger)
            if number < len(blocks) and blocks[number].size >= BLOCK_BYTES:
                return blocks[number]
            at = blocks[-1].stop if blocks else 0
            upto = Position(ledger, source.last_entry(ledger))
            entries = await source.read(
                Position(ledger, at), upto=upto, entries_max=ENTRIES_AT_ONCE, bytes_max=BLOCK_BYTES
            )
            if not entries:
                return blocks[number] if number < len(blocks) else None
            latest_ms = NO_RECORDS
            for entry in entries:
                if not entry.is_control:
                    header = _header(await self._convert(entry))
                    latest_ms = max(latest_ms, NO_RECORDS if header is None else header.max_timestamp_ms)
            await trio.lowlevel.checkpoint()
            # Meanwhile another search may have read them, or the ledger may have been forgotten.
            if self._blocks.get(ledger) is blocks and at == (blocks[-1].stop if blocks else 0):
                self._remember(blocks, entries, latest_ms)

    def _remember(self, blocks: list[Block], entries: list[Entry], latest_ms: int) -> None:
        first, stop = entries[0], entries[-1].position.entry + 1
        size = sum(len(entry.payload) for entry in entries)
        if blocks and blocks[-1].size < BLOCK_BYTES:
            last = blocks[-1]
            blocks[-1] = last._replace(stop=stop, latest_ms=max(last.latest_ms, latest_ms), size=last.size + size)
        else:
            blocks.append(Block(first.position.entry, stop, first.first_index, latest_ms, size))
            while self.block_count > BLOCKS_MAX and len(self._blocks) > 1:
                self._blocks.popitem(last=False)

    async def _in_block(
        self, topic: Topic, ledger: int, block: Block, end: int, best: Found, *, enough_ms: int | None
    ) -> Found:
        """The first of the latest records in a block, if that is better than `best`.

        With `enough_ms`, the first record that is not earlier.
        """
        at, upto = Position(ledger, block.start), Position(ledger, block.stop - 1)
        while at <= upto:
            entries = await topic.ledger.read(at, upto=upto, entries_max=ENTRIES_AT_ONCE, bytes_max=BLOCK_BYTES)
            if not entries:
                break
            try:
                known = await judged(topic, entries)
            except LedgerNotFound:
                break  # It was trimmed meanwhile.
            for entry, is_shown in known:
                if not is_shown or entry.is_control or entry.first_index >= end:
                    continue
                batch = (await self._convert(entry)).payload
                header = _header(entry._replace(payload=batch))
                if header is None or not _improves(header.max_timestamp_ms, entry.first_index, best):
                    continue
                if enough_ms is not None and header.max_timestamp_ms < enough_ms:
                    continue
                async with self._inflating:
                    best = await _in_batch(topic, entry.first_index, header, batch, end, best, enough_ms=enough_ms)
                if enough_ms is not None and best.timestamp_ms >= enough_ms:
                    return best
            at = Position(ledger, known[-1][0].position.entry + 1)
            await trio.lowlevel.checkpoint()
        return best


async def _in_batch(
    topic: Topic, base: int, header: BatchHeader, batch: bytes, end: int, best: Found, *, enough_ms: int | None
) -> Found:
    work = 0
    try:
        for delta, record in parse(header, await paced(opened(header, batch, INFLATED_BYTES_MAX))):
            offset = base + delta
            if topic.ledger.first_index <= offset < end and _improves(record.timestamp_ms, offset, best):
                best = Found(record.timestamp_ms, offset)
                if enough_ms is not None and best.timestamp_ms >= enough_ms:
                    break
            work += 1 + len(record.headers)
            if work >= RECORDS_AT_ONCE:
                work = 0
                await trio.lowlevel.checkpoint()
    except CorruptBatch:
        pass  # Its checksum was right when it came. What its client wrote wrongly behind here cannot be found.
    return best


def _ledgers(source: ManagedLedger) -> Iterator[tuple[int, int]]:
    """The ledgers with confirmed or waiting entries, each with its first index, in order."""
    following = 0
    for info in tuple(source.closed):
        following = info.first_index + info.messages
        yield info.id, info.first_index
    last = source.last_position
    if source.takes_entries(last.ledger):
        yield last.ledger, following if source.closed else source.first_index


def _header(entry: Entry) -> BatchHeader | None:
    """The header of a batch with records; None if there is nothing to find in it."""
    try:
        header = read_header(entry.payload)
    except (CorruptBatch, UnsupportedFormat):
        return None  # It was checked when it came. No record of a damaged one can be found.
    return None if header.is_control else header


def _may_reach(latest_ms: int, timestamp_ms: int) -> bool:
    return latest_ms == UNKNOWN_TIME or latest_ms >= timestamp_ms


def _improves(timestamp_ms: int, offset: int, best: Found) -> bool:
    """Whether a record of this time, at this offset or behind it, may be better than the best one so far."""
    return timestamp_ms > best.timestamp_ms or (timestamp_ms == best.timestamp_ms >= 0 and offset < best.offset)
