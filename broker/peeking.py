"""Reads a page of a topic's log for people: every durable message, with what readers make of it.

It reads as `read_uncommitted` does, up to `confirmed`, and stays at no place: the answer names the pages before and
behind it. A page is bounded in messages and bytes, and a message that has more is cut.

    from a place on     reads forwards, and ends with the bound
    before a place      reads backwards, entry by entry, and begins with the bound
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import trio

from broker.contents import Content, Contents
from broker.errors import TopicClosed
from broker.peek_contract import PAGE_BYTES_MAX, PROPERTIES_MAX, TEXT_MAX, Asked, Page, Place, Row, State
from broker.topic_source import TopicSource
from storage.entry import Entry
from storage.errors import EntriesUnreadable, LedgerCorrupt, LedgerNotFound
from storage.position import EARLIEST, Position
from txn.states import TxnState

STATES: Final = {
    TxnState.COMMITTED: State.COMMITTED,
    TxnState.OPEN: State.OPEN,
    TxnState.ABORTED: State.ABORTED,
}

_READ_BYTES: Final = 256 * 1024
_READ_ENTRIES: Final = 100
"""What is read at once forwards. A larger entry is read alone."""

_ROW_BYTES: Final = 200
"""What a row shows besides texts."""


Decode = Callable[[Row, Content], Awaitable[Row]]
"""Adds what a whole message's value says by its schema."""


async def peek(source: TopicSource, asked: Asked, decode: Decode) -> Page:
    """Return a page of the log, with everything that was decided before the call.

    Raises:
        OwnershipLost, TopicClosed: this broker does not serve the topic any more.
    """
    while True:
        await source.caught_up()
        if source.has_ended:
            raise TopicClosed(f"This broker no longer serves {source.ledger.name}. Ask again.")
        try:
            return await _Reading(source, asked, decode).page()
        except LedgerNotFound:
            continue  # A ledger was trimmed meanwhile. It is no longer listed, so the next reading skips it.


class _Reading:
    """One page in the making."""

    def __init__(self, source: TopicSource, asked: Asked, decode: Decode) -> None:
        self._source = source
        self._ledger = source.ledger
        self._asked = asked
        self._decode = decode
        self._upto = self._ledger.confirmed.value
        self._end = Place(self._ledger.next_after(self._upto))
        """Behind the last durable message."""
        self._bytes = 0

    async def page(self) -> Page:
        asked = self._asked
        if asked.start is not None:
            begin = asked.start
        elif asked.time_ms is not None:
            begin = await self._at_time(asked.time_ms)
        else:
            before = self._end if asked.before is None else await self._existing(asked.before)
            return await self._page(*await self._backwards(before), before)
        begin = await self._existing(begin)
        rows, end = await self._forwards(begin)
        return await self._page(rows, begin, end)

    async def _page(self, rows: Sequence[Row], start: Place, end: Place) -> Page:
        first = await self._first()
        return Page(
            tuple(rows),
            start,
            end,
            has_older=start > Place(first),
            has_newer=end < self._end,
            first=first,
            confirmed=self._upto,
            readable=self._source.readable.value,
            is_sealed=self._ledger.is_sealed,
        )

    async def _first(self) -> Position:
        """Where the log begins, or would begin. What was deleted by request is in front of it."""
        try:
            kept = await self._source.first_kept()
        except LedgerCorrupt:
            kept = EARLIEST
        return self._ledger.next_after(max(kept.before(), EARLIEST))

    async def _at_time(self, time_ms: int) -> Place:
        try:
            return Place(await self._ledger.position_at_time(time_ms))
        except EntriesUnreadable as damage:
            return Place(damage.first)

    async def _existing(self, place: Place) -> Place:
        """The same place, or the next one that exists."""
        if place.position == EARLIEST:
            return Place(await self._first())
        if place.position >= self._end.position:
            return self._end
        found = self._ledger.next_after(place.position.before())
        return place if found == place.position else Place(found)

    # Reading

    async def _forwards(self, at: Place) -> tuple[list[Row], Place]:
        rows: list[Row] = []
        async with aclosing(self._entries(at.position)) as entries:
            async for found in entries:
                if isinstance(found, EntriesUnreadable):
                    rows.append(_damaged(found.first, found.last, str(found)))
                    at = self._behind(found.last)
                else:
                    first = at.number if found.position == at.position else 0
                    at = self._behind(found.position)
                    for row in await self._rows(found, first, self._asked.count - len(rows)):
                        if not self._takes(row, rows):
                            return rows, Place(found.position, row.number or 0)
                        rows.append(row)
                        at = self._behind_row(found, row)
                if len(rows) >= self._asked.count:
                    break
        return rows, at

    async def _entries(self, at: Position) -> AsyncGenerator[Entry | EntriesUnreadable, None]:
        """Yield the durable entries from a position on, and damage in their place."""
        while at <= self._upto:
            try:
                entries = await self._ledger.read(at, upto=self._upto, entries_max=_READ_ENTRIES, bytes_max=_READ_BYTES)
            except EntriesUnreadable as damage:
                yield damage
                at = self._ledger.next_after(damage.last)
                continue
            if not entries:
                return
            for entry in entries:
                yield entry
            at = self._ledger.next_after(entries[-1].position)
            # Reads served from memory do not pause.
            await trio.lowlevel.checkpoint()

    async def _backwards(self, before: Place) -> tuple[list[Row], Place]:
        rows: list[Row] = []
        """The last one first."""
        at = before
        while len(rows) < self._asked.count:
            position, wanted = at.position, at.number
            if not wanted:
                position = self._ledger.previous(at.position)
                if position == EARLIEST:
                    break
            try:
                found = await self._ledger.read(position, upto=position, entries_max=1, bytes_max=1)
            except EntriesUnreadable as damage:
                rows.append(_damaged(position, position, str(damage)))
                at = Place(position)
                continue
            if not found:
                raise LedgerNotFound(f"ledger {position.ledger} was trimmed")
            entry = found[0]
            upto = min(wanted, entry.message_count) or entry.message_count
            low = max(0, upto - (self._asked.count - len(rows)))
            made = await self._rows(entry, low, upto - low)
            for row in reversed(made):
                if not self._takes(row, rows):
                    return rows[::-1], at
                rows.append(row)
                at = Place(position, row.number or 0)
            # A row without a number stands for all messages of the entry, also for those below `low`.
            is_whole = any(row.number is None for row in made)
            at = Place(position, 0 if is_whole else low)
            await trio.lowlevel.checkpoint()
        return rows[::-1], at

    def _takes(self, row: Row, rows: Sequence[Row]) -> bool:
        self._bytes += _bytes_of(row)
        return not rows or self._bytes <= PAGE_BYTES_MAX

    def _behind(self, position: Position) -> Place:
        return Place(self._ledger.next_after(position))

    def _behind_row(self, entry: Entry, row: Row) -> Place:
        if row.number is None or row.number + 1 >= entry.message_count:
            return self._behind(entry.position)
        return Place(entry.position, row.number + 1)

    # Rows

    async def _rows(self, entry: Entry, first: int, count: int) -> list[Row]:
        """The rows of an entry: of its messages from the number `first` on, at most `count`."""
        made = Row(
            entry.position,
            State.MARKER,
            index=entry.first_index,
            stored_ms=entry.timestamp_ms,
            format=entry.format,
            txn=entry.txn,
        )
        if entry.is_control:
            return [replace(made, messages=0, problem=self._source.control_of(entry))]
        try:
            state = STATES[await self._source.state_of(entry)]
        except LedgerCorrupt as damage:
            return [replace(made, state=State.DAMAGED, messages=entry.message_count, problem=str(damage))]
        contents = await self._source.contents_of(entry, first, count)
        made = replace(made, state=state)
        return [await self._row(made, entry, contents, content) for content in contents.messages]

    async def _row(self, made: Row, entry: Entry, contents: Contents, content: Content) -> Row:
        number = content.number or 0
        start = self._ledger.start_index
        messages = entry.message_count if contents.is_whole else 1
        made = replace(
            made,
            number=content.number,
            messages=messages,
            index=entry.first_index + number,
            compression=contents.compression,
            part=contents.part,
            problem=contents.problem,
        )
        if content.is_deleted or entry.first_index + number + messages <= start:
            return replace(made, state=State.DELETED, problem=None)
        if contents.is_whole and entry.first_index < start:
            return replace(made, problem=f"{contents.problem} Some of its messages were deleted, so it is not shown.")
        value = content.value or b""
        made = replace(
            made,
            content=_cut(content, self._asked.value_bytes),
            size_bytes=len(value),
            properties=len(content.properties),
        )
        if contents.problem is not None or content.value is None:
            return made
        return await self._decode(made, content)


def _damaged(first: Position, last: Position, problem: str) -> Row:
    return Row(first, State.DAMAGED, messages=0, problem=problem, last=last)


def _cut(content: Content, value_bytes: int) -> Content:
    """A copy of what is shown, so that the rest need not stay in memory."""
    return content._replace(
        value=None if content.value is None else content.value[:value_bytes],
        key=None if content.key is None else content.key[:TEXT_MAX],
        ordering_key=None if content.ordering_key is None else content.ordering_key[:TEXT_MAX],
        properties=tuple((name[:TEXT_MAX], text[:TEXT_MAX]) for name, text in content.properties[:PROPERTIES_MAX]),
        producer=None if content.producer is None else content.producer[:TEXT_MAX],
        schema_version=None if content.schema_version is None else content.schema_version[:TEXT_MAX],
    )


def _bytes_of(row: Row) -> int:
    """About the bytes that a row shows. A value is shown twice: as bytes and as text."""
    content = row.content
    if content is None:
        return _ROW_BYTES + len(row.problem or "")
    texts = sum(len(name) + len(text) for name, text in content.properties)
    keys = len(content.key or b"") + len(content.ordering_key or b"") + len(content.producer or "")
    return _ROW_BYTES + 2 * len(content.value or b"") + texts + keys + len(row.value or b"")
