"""The conditions on rows that Spark pushes down before it plans a batch, and what they save.

A condition on `segment`, `topic` or `key` skips whole segments: a key's hash determines its segments. One on
`publish_time` skips entries before they are decompressed, and one on `key` skips rows before they go to Spark. Spark
applies every filter again. So a filter without a condition here only costs time, but none may skip a row that it
allows.

`filters.py` makes them of Spark's filters. Pure.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidewire.protocol.layout import Segment
from tidewire.wire.pulsar.hashing import key_hash


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


def _hashes(key: str) -> Iterable[int]:
    """The hashes of messages that show this key. A binary key shows as base64, and its hash is that of its bytes."""
    yield key_hash(key)
    try:
        yield key_hash(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        return
