"""What is in an entry, for people who look at it: its messages, in words of no protocol. Pure.

A front end fills it in for entries of its format (`broker.entry_codecs`). Whatever a client sent, something can be
told: if the messages cannot be taken apart, one `Content` stands for the whole entry, with the bytes as they are
stored, and `problem` says why.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Content(NamedTuple):
    """One message, as its producer sent it."""

    value: bytes | None
    """None if the producer sent no value at all."""
    key: bytes | None = None
    ordering_key: bytes | None = None
    properties: Sequence[tuple[str, str]] = ()
    publish_ms: int | None = None
    """When it was sent, by its producer's clock; milliseconds since 1970."""
    event_ms: int | None = None
    """The time that the producer's application gave."""
    producer: str | None = None
    sequence_id: int | None = None
    schema_version: bytes | None = None
    """The version of the topic's schema that it names."""
    number: int | None = None
    """Its place in its batch; None if it was sent alone, or stands for the whole entry."""
    is_deleted: bool = False
    """Whether a client deleted it from its batch, as compaction does."""


class Part(NamedTuple):
    """The part of a message that is larger than an entry."""

    message: str
    """What all parts of the message share."""
    number: int
    """From 0 on."""
    parts: int
    size_bytes: int
    """Of the whole message."""


class Contents(NamedTuple):
    """What is in an entry."""

    messages: Sequence[Content]
    is_whole: bool = False
    """Whether the only `Content` stands for all messages of the entry."""
    compression: str | None = None
    """How its producer compressed it."""
    part: Part | None = None
    problem: str | None = None
    """Why the bytes are as they are stored. None if they are as the producer's application gave them."""


class ToolView(NamedTuple):
    """An entry as Pulsar's tools look at it: fields, and what the body holds."""

    fields: Sequence[tuple[str, str]]
    """Names and values of HTTP's header fields, as Pulsar's tools know them."""
    body: bytes
    """What its producer sent, without compression: a value, or a batch."""


def time_text(milliseconds: int) -> str:
    """A time since 1970 as text (ISO 8601); empty if it is in no year from 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return ""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
