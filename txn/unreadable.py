"""Records that a task cannot read. Each is reported once and skipped, so that it does not block the others (E11).

They stay as they are. This program did not write them like that, and only people can tell what they were.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from txn.errors import RecordUnreadable

KEYS_MAX: Final = 1_000
"""Keys that one task remembers. Beyond that, the oldest are forgotten and reported again."""

log = structlog.get_logger(__name__)


class Unreadable:
    """What one task has passed over.

    for record in records:
        with unreadable.reading(record.key):
            headers.append(Header.from_value(record.value))
    """

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Read the record of this key in the block. If it is damaged, the block ends there."""
        try:
            yield
        except RecordUnreadable as damaged:
            if key not in self._keys:
                log.error("a record is damaged and was skipped", key=key, reason=str(damaged))
                while len(self._keys) >= KEYS_MAX:
                    del self._keys[next(iter(self._keys))]
                self._keys[key] = None
        else:
            self._keys.pop(key, None)
