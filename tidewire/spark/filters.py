"""Filters that Spark hands over before a batch is planned, and what they save.

On `segment`, `topic` and `key` whole segments are left out: a key's messages are where its hash leads. On
`publish_time` entries are left out before they are decompressed, on `key` rows before they go to Spark. Spark checks
every filter again, so what is not understood here costs time and nothing else; a filter may only ever leave out rows
that it excludes.
"""

import base64
import binascii
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tidewire.protocol.layout import Segment
from tidewire.wire.pulsar.hashing import key_hash

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EQUAL: Final = (EqualTo, EqualNullSafe)
_LOWER: Final = (GreaterThan, GreaterThanOrEqual)
_UPPER: Final = (LessThan, LessThanOrEqual)


class Pushed(NamedTuple):
    """What rows have to be; None for anything."""

    topics: frozenset[str] | None = None
    segments: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    published_from_us: int | None = None
    published_upto_us: int | None = None

    def wants(self, part: Segment) -> bool:
        """Whether the part may have such rows."""
        if self.topics is not None and part.topic not in self.topics:
            return False
        if self.segments is not None and part.name not in self.segments:
            return False
        # A key that is no text shows with replacement characters, which do not say where its hash led.
        if self.keys is None or part.hashes is None or any("\ufffd" in key for key in self.keys):
            return True
        first, last = part.hashes
        return any(first <= hashed <= last for key in self.keys for hashed in _hashes(key))

    def wants_published(self, time_us: int | None) -> bool:
        """Whether rows of that publish time may be such; None is a time that is null in Spark."""
        if time_us is None:
            return self.published_from_us is None and self.published_upto_us is None
        return (self.published_from_us is None or time_us >= self.published_from_us) and (
            self.published_upto_us is None or time_us <= self.published_upto_us
        )


NOTHING_PUSHED: Final = Pushed()


def pushed_of(filters: Iterable[Filter]) -> Pushed:
    """What the filters, which hold all together, say that is understood here."""
    pushed = NOTHING_PUSHED
    for one in filters:
        pushed = _narrowed(pushed, one)
    return pushed


def _narrowed(pushed: Pushed, one: Filter) -> Pushed:
    column = getattr(one, "attribute", ())
    value: Any = getattr(one, "value", None)
    if column == ("publish_time",) and isinstance(value, datetime):
        time_us = _microseconds(value)
        lowest, highest = pushed.published_from_us, pushed.published_upto_us
        # Bounds that are not met exactly are taken as met: Spark looks again.
        if isinstance(one, (*_LOWER, *_EQUAL)):
            lowest = time_us if lowest is None else max(lowest, time_us)
        if isinstance(one, (*_UPPER, *_EQUAL)):
            highest = time_us if highest is None else min(highest, time_us)
        return pushed._replace(published_from_us=lowest, published_upto_us=highest)
    if isinstance(one, _EQUAL):
        values = frozenset({value})
    elif isinstance(one, In):
        values = frozenset(value)
    else:
        return pushed
    if not all(isinstance(item, str) for item in values):
        return pushed
    names = {("topic",): "topics", ("segment",): "segments", ("key",): "keys"}
    name = names.get(tuple(column))
    if name is None:
        return pushed
    before: frozenset[str] | None = getattr(pushed, name)
    return pushed._replace(**{name: values if before is None else before & values})  # type: ignore[arg-type]


def _microseconds(time: datetime) -> int:
    aware = time.astimezone(UTC)
    since = aware - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _hashes(key: str) -> Iterable[int]:
    """Where messages that show this key may be: a key of bytes shows in base64, and is hashed by its bytes."""
    yield key_hash(key)
    try:
        yield key_hash(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        return
