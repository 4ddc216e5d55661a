"""What people may ask about single messages: a page of a log, without a subscription. HTTP serves this contract.

A peek moves nothing and leaves nothing. It makes no cursor, no subscription and no consumer.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from broker.contents import Content, Part, ToolView
from broker.names import TopicName
from storage.entry import EntryFormat, TxnId
from storage.position import Position

COUNT_USUAL: Final = 20

COUNT_MAX: Final = 1_000
"""Messages of one page."""

VALUE_BYTES_USUAL: Final = 4_096

VALUE_BYTES_MAX: Final = 64 * 1024
"""Bytes of one value that a page shows at most."""

PAGE_BYTES_MAX: Final = 512 * 1024
"""About the bytes that a page shows. One message is shown even if it has more."""

TEXT_MAX: Final = 1_024
"""Characters of a name, key or property that a page shows."""

PROPERTIES_MAX: Final = 100
"""Properties of one message that a page shows."""


class State(StrEnum):
    """What readers make of a message."""

    COMMITTED = "committed"
    """Consumers get it: it was written outside of transactions, or its transaction was committed."""
    OPEN = "open"
    """Its transaction is not decided. No consumer gets it, nor what is behind it."""
    ABORTED = "aborted"
    """No consumer ever gets it."""
    DELETED = "deleted"
    """It was deleted by request, and its bytes are still there. It is not shown."""
    MARKER = "marker"
    """It is no message: a broker wrote it for brokers."""
    DAMAGED = "damaged"
    """It cannot be read."""


class Place(NamedTuple):
    """A place in a log, before a message. Places are in the order of the messages."""

    position: Position
    number: int = 0
    """The message's number in its entry."""

    def __str__(self) -> str:
        return f"{self.position}:{self.number}" if self.number else str(self.position)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which page. One of the first three is set; without one, the page has the newest messages."""

    start: Place | None = None
    """The page begins with the message here, or with the next one."""
    before: Place | None = None
    """The page ends with the message before this place."""
    time_ms: int | None = None
    """The page begins with the first message that the broker took at this time or later."""
    count: int = COUNT_USUAL
    """Messages, at most; from 1 to COUNT_MAX."""
    value_bytes: int = VALUE_BYTES_USUAL
    """Bytes of each value that are shown; at most VALUE_BYTES_MAX. A larger value is cut, and not decoded."""


@dataclass(frozen=True, slots=True)
class Row:
    """One message of a page. Long texts are cut."""

    position: Position
    state: State
    number: int | None = None
    """Its number in its batch."""
    messages: int = 1
    """The messages that the row stands for. An entry that cannot be taken apart has one row."""
    index: int | None = None
    """Its index in the log, which is Kafka's offset; None if that is unknown."""
    stored_ms: int | None = None
    """When the broker took it."""
    format: EntryFormat = EntryFormat.PULSAR
    txn: TxnId | None = None
    content: Content | None = None
    """None if there is no message, or none that is shown. The value is cut."""
    size_bytes: int = 0
    """Bytes of the whole value."""
    properties: int = 0
    """How many properties it has."""
    compression: str | None = None
    part: Part | None = None
    problem: str | None = None
    """Why the value is shown as it is stored, or why there is none. Of a marker: what it says."""
    last: Position | None = None
    """Of damage: where it ends."""
    schema: "DecodedBy | None" = None
    value: bytes | None = None
    """The value by its schema, as JSON text. None if there is no schema, or it has a problem."""


class DecodedBy(NamedTuple):
    """What a value was decoded by."""

    version: int
    type: str
    is_named: bool
    """Whether the message names this version. Otherwise it is the topic's latest one."""
    problem: str | None = None
    """Why the value is not decoded."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a log at one moment, oldest first."""

    rows: tuple[Row, ...]
    start: Place
    """Where it begins. The page before ends here."""
    end: Place
    """Where it ends. The page behind begins here, now or later."""
    has_older: bool
    has_newer: bool
    first: Position
    """The first position that is retained, or that the next entry gets."""
    confirmed: Position
    """The last durable position."""
    readable: Position
    """How far consumers may read. Every transaction up to here is decided."""
    is_sealed: bool


class StoredEntry(NamedTuple):
    """A whole entry, as Pulsar's tools peek at it."""

    position: Position
    state: State
    is_readable: bool
    """Whether consumers may read so far."""
    first_index: int
    """The index of its first message."""
    messages: int
    stored_ms: int
    view: ToolView
    """Without fields and body, if there is no message."""
    says: str = ""
    """What a control entry says."""


class PeekService(Protocol):
    """Looks at messages. Every `name` is that of one log: a regular topic, a partition or a segment.

    Besides the errors named, every method may raise what `TopicService`'s methods do. A log that another broker owns
    is refused with `OwnedElsewhere`, and HTTP passes the request on.
    """

    async def page(self, name: TopicName, asked: Asked) -> Page:
        """Return a page of messages. Everything decided before the call shows in their states.

        Raises:
            TopicNotFound: there is no such log, or the segment was pruned.
            OnePartitionOnly: the topic has partitions.
        """

    async def entry(self, name: TopicName, position: Position) -> StoredEntry:
        """Return the entry at a position.

        Raises:
            MessageNotFound: there is none, or it was deleted.
            OnePartitionOnly: the topic has partitions.
        """

    async def entry_of_subscription(self, name: TopicName, subscription: str, number: int) -> StoredEntry:
        """Return one of the entries that a subscription has not acknowledged, by its number from 1 on.

        Entries that no consumer gets are among them, as in Pulsar. Its tools leave them out.

        Raises:
            SubscriptionNotFound
            MessageNotFound: there are not so many.
            OnePartitionOnly: the topic has partitions.
        """

    async def entry_by_number(self, name: TopicName, number: int, *, from_end: bool) -> StoredEntry:
        """Return an entry by its number from 1 on, counted from the beginning or from the end.

        Raises:
            MessageNotFound: there are not so many.
            OnePartitionOnly: the topic has partitions.
        """

    async def place_at_time(self, name: TopicName, timestamp_ms: int) -> Position:
        """Return the first entry that the broker took at this time or later; the next one, if there is none yet.

        Raises:
            OnePartitionOnly: the topic has partitions.
        """

    async def place_of_index(self, name: TopicName, index: int) -> Position:
        """Return the entry with the message of this index, which is Kafka's offset.

        Raises:
            MessageNotFound: there is none, or it was deleted.
            OnePartitionOnly: the topic has partitions.
        """
