"""The filters that Spark pushes down before it plans a batch, and what they save.

Filters on `segment`, `topic` and `key` skip whole segments: a key's hash determines its segments. A filter on
`publish_time` skips entries before they are decompressed, and one on `key` skips rows before they go to Spark. Spark
applies every filter again. So a filter that is not understood here only costs time, but none may skip a row that it
allows.
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
    """The conditions on rows; None for no condition."""

    topics: frozenset[str] | None = None
    segments: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    published_from_us: int | None = None
    published_upto_us: int | None = None

    def wants(self, part: Segment) -> bool:
        """Whether the part may hold such rows."""
        if self.topics is not None and part.topic not in self.topics:
            return False
        if self.segments is not None and part.name not in self.segments:
            return False
        # A key that is not valid text shows replacement characters, from which its hash cannot be computed.
        if self.keys is None or part.hashes is None or any("\ufffd" in key for key in self.keys):
            return True
        first, last = part.hashes
        return any(first <= hashed <= last for key in self.keys for hashed in _hashes(key))

    def wants_published(self, time_us: int | None) -> bool:
        """Whether such rows may have this publish time; None is a time that is null in Spark."""
        if time_us is None:
            return self.published_from_us is None and self.published_upto_us is None
        return (self.published_from_us is None or time_us >= self.published_from_us) and (
            self.published_upto_us is None or time_us <= self.published_upto_us
        )


NOTHING_PUSHED: Final = Pushed()


def pushed_of(filters: Iterable[Filter]) -> Pushed:
    """The conditions that are understood here, of filters that must all hold."""
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
        # Open bounds are treated as closed ones, because Spark filters again.
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
    """The hashes of messages that show this key. A binary key shows as base64, and its hash is that of its bytes."""
    yield key_hash(key)
    try:
        yield key_hash(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        return
