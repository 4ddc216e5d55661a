"""What the broker asks of a stored payload, and who answers: one codec for each `EntryFormat`.

A payload stays as its client sent it. The rooms behind the front ends know its format and no more. Where they need to
know what is in it, they ask the format's codec. Each front end brings the codec of its own format, and the composition
hands all of them to the topics (`front_ends.py`, `broker.py`). So another protocol adds a codec and changes no room.

A codec says nothing of what an entry's header has: how many messages it holds, when the broker took it, which
transaction wrote it. It converts nothing either. A reader of another format has a `Converter`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from broker.contents import Content, Contents, ToolView
from broker.tracing.contexts import TraceContext
from dispatch.chunks import Chunk
from storage.entry import Entry, EntryFormat
from storage.metadata.steps import Steps

Converter = Callable[[Entry], Awaitable[Entry]]
"""Gives an entry in its reader's format, at the same position and with the same messages. An entry that it cannot
convert stays as it is stored. It lets other tasks run in between, because an entry may hold very many messages (E7)."""


async def as_stored(entry: Entry) -> Entry:
    """The converter of a reader of every format."""
    return entry


ViewForTools = Callable[[Entry], Steps[ToolView]]
"""How Pulsar's tools see an entry in the format of those who subscribe, in steps (E7). It never raises."""


def as_bytes(entry: Entry) -> Steps[ToolView]:
    """The view of an entry of which nothing is known."""
    yield from ()
    return ToolView((), entry.payload)


class SendId(NamedTuple):
    """What tells a send of a producer from its others."""

    first: int
    """The sequence id of its first message."""
    last: int
    """That of its last; the same as `first` when it is no batch."""
    chunk: int = 0
    """Which part of a message that is sent in several; they share their sequence id."""
    chunks: int = 1


class Send(NamedTuple):
    """By which send an entry came."""

    producer: str
    id: SendId


class EntryCodec(Protocol):
    """What can be told from payloads of one format.

    No method raises. Clients choose the bytes, and one odd entry must not end a topic. Where a payload cannot be read,
    the answer is None. The entry is delivered as it is, and its consumer says what is wrong with it.
    """

    def chunk_of(self, entry: Entry) -> Chunk | None:
        """Which part of a message the entry is; None for one that is whole. Asked of each entry that is shared out."""

    def key_of(self, entry: Entry) -> bytes | None:
        """The key by which the entry keeps its order among consumers; None if it has none."""

    def send_of(self, entry: Entry) -> Send | None:
        """Who sent it and under which ids, as a new owner reads it from the log; None if the entry does not say."""

    def contents_of(self, entry: Entry, first: int, count: int) -> Steps[Contents]:
        """What is in it, for people: at most `count` messages from the one with this number on, in steps (E7).

        A deleted message keeps its number and is among them. Asked of entries with messages only.
        """
        ...

    def control_of(self, entry: Entry) -> str:
        """What a control entry says, in a few words for people."""
        ...

    def trace_contexts_of(self, payload: bytes, message_count: int) -> Sequence[TraceContext]:
        """The sampled trace contexts of its messages, at most `CONTEXTS_MAX`. Asked only if the broker traces.

        It may not pause. So it finds none in a compressed batch that is large.
        """
        ...


class _Opaque:
    """The codec of a format that no front end here serves: nothing can be told."""

    def chunk_of(self, _entry: Entry) -> None:
        """See `EntryCodec`."""

    def key_of(self, _entry: Entry) -> None:
        """See `EntryCodec`."""

    def send_of(self, _entry: Entry) -> None:
        """See `EntryCodec`."""

    def contents_of(self, entry: Entry, _first: int, _count: int) -> Steps[Contents]:
        """See `EntryCodec`."""
        yield from ()
        return undivided(entry, f"This broker does not know the format {entry.format.name.lower()}.")

    def control_of(self, entry: Entry) -> str:
        """See `EntryCodec`."""
        return _CONTROLS.get(entry.format, "")

    def trace_contexts_of(self, _payload: bytes, _message_count: int) -> tuple[()]:
        """See `EntryCodec`."""
        return ()


_CONTROLS: Final = {EntryFormat.PRODUCERS: "what the log knows of its producers"}


def undivided(entry: Entry, problem: str) -> Contents:
    """Contents of an entry of which nothing can be told but its bytes."""
    return Contents((Content(entry.payload),), is_whole=True, problem=problem)


class EntryCodecs(dict[EntryFormat, EntryCodec]):
    """The codec of each format. A format that no front end here serves has one that can tell nothing."""

    def __missing__(self, entry_format: EntryFormat) -> EntryCodec:
        return _OPAQUE


_OPAQUE = _Opaque()
