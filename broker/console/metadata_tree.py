"""One level of the metadata store's keys, with what changed below it since the view was opened."""

from collections import deque
from typing import Any, Final

import trio

from broker.console.feed import Parts, follow
from storage.clock import WallClock
from storage.metadata.readable import record_fields
from storage.metadata.store import Change, MetadataStore
from storage.signal import Signal

SHOWN_MAX: Final = 200
"""Most keys of a level in a frame."""
CHANGES_MAX: Final = 100
"""How many changes are remembered."""


class MetadataFeed:
    """The keys that begin with a prefix, up to their next slash."""

    def __init__(self, store: MetadataStore, now_ms: WallClock, *, prefix: str, key: str | None, first: int) -> None:
        """Set up; `first` is the number of the first key shown. The record at `key` is shown whole."""
        self.changed = Signal()
        self._store = store
        self._now_ms = now_ms
        self._prefix = prefix
        self._key = key
        self._first = first
        self._record: dict[str, object] | None = None
        self._versions: dict[str, int] = {}
        self._changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_MAX)
        self._is_known = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records until cancelled."""
        await follow(self._store, [(self._prefix, self._hear)], self.changed, task_status=task_status)

    def parts(self) -> Parts:
        """See `Feed`."""
        level: dict[str, dict[str, Any]] = {}
        for key, version in self._versions.items():
            name, slash, _ = key[len(self._prefix) :].partition("/")
            if not name and slash:
                # The first key begins with a slash of its own.
                name, slash, _ = key[len(self._prefix) + 1 :].partition("/")
                name = "/" + name
            one = level.setdefault(
                name + slash, {"name": name + slash, "records": 0, "version": 0, "is_record": not slash}
            )
            one["records"] += 1
            one["version"] = max(one["version"], version)
        names = sorted(level)
        return {
            "prefix": self._prefix,
            "total": len(self._versions),
            "matched": len(names),
            "first": self._first,
            "page": SHOWN_MAX,
            "level": [level[name] for name in names[self._first : self._first + SHOWN_MAX]],
            "key": self._key,
            "record": self._record,
            "changes": list(reversed(self._changes)),
        }

    def _hear(self, change: Change) -> None:
        for key in change.deleted:
            self._versions.pop(key, None)
            self._note(key, change.revision, "deleted")
            if key == self._key:
                self._record = None
        for record in change.records:
            what = "changed" if record.key in self._versions else "created"
            self._versions[record.key] = record.version
            self._note(record.key, record.version, what)
            if record.key == self._key:
                self._record = record_fields(record)
        self._is_known = True

    def _note(self, key: str, revision: int, what: str) -> None:
        if self._is_known:
            self._changes.append({"at_ms": self._now_ms(), "key": key, "revision": revision, "what": what})
