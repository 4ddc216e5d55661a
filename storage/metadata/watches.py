"""Which tasks wait for which keys, and how they learn what a change set did.

Firing happens in the step that makes a change set visible, between two scheduler turns. So it must be cheap and never
wait. Watches of a key are found in a dict, watches of a range by one bisection. Each only notes what concerns it and
wakes its reader. The backlog of a reader is bounded. A key watch keeps nothing and looks at the image. A range watch
folds its backlog into the difference since its last reading (M17). The difference is exact without a copy of what was
read, because every change has the record before it.

Work that grows with the number of keys is done some keys at a time (E7). Each step that finds the watches for a part of
a change set also folds twice as many keys as the part has. So the unfolded rest stays bounded. The reader folds that
rest, sorts changes, and lists the first records, with pauses in its own task.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from types import TracebackType
from typing import Final, Self

import trio
from sortedcontainers import SortedDict

from storage.errors import fresh
from storage.metadata.image import Image, Written
from storage.metadata.pacing import paced
from storage.metadata.steps import KEYS_AT_ONCE, Steps
from storage.metadata.store import Change, KeyWatch, RangeWatch, Record
from storage.signal import Signal

BACKLOG_KEYS_MAX: Final = 4096
"""How many changed keys a range watch keeps by change set before it folds them into one difference."""

CHANGES_AT_ONCE: Final = 16
"""Change sets that a reader of a range takes before other tasks have a turn."""

_NEVER: Final = -1
"""What a key watch has returned before its first return. No record has this version."""


class Watches:
    """All open watches over one image."""

    __slots__ = ("_count", "_failure", "_image", "_keys", "_ranges", "showing")

    def __init__(self, image: Image) -> None:
        self._image = image
        self._keys: dict[str, set[ImageKeyWatch]] = {}
        self._ranges = RangeTable()
        self._count = 0
        self._failure: BaseException | None = None
        self.showing: trio.Event | None = None
        """While the image shows a part of a change set: set when it shows all of it. Readers wait for it."""

    def __len__(self) -> int:
        return self._count

    def of_key(self, key: str) -> "ImageKeyWatch":
        """A watch of one key, to be entered as a context."""
        return ImageKeyWatch(self, self._image, key)

    def of_range(self, start: str, end: str) -> "ImageRangeWatch":
        """A watch of a range, to be entered as a context."""
        return ImageRangeWatch(self, self._image, start, end)

    def fire(self, revision: int, written: Sequence[Written]) -> None:
        """Notify the watches of the changed keys. The image holds the change set already."""
        concerned: dict[ImageRangeWatch, list[Written]] = {}
        self.note(written, concerned)
        self.tell(revision, concerned)

    def note(self, written: Sequence[Written], concerned: dict["ImageRangeWatch", list[Written]]) -> None:
        """Find the watches of the keys in a part of a change set. Readers of single keys look at the image later."""
        for change in written:
            for key_watch in self._keys.get(change.key, ()):
                key_watch.signal.set()
            for range_watch in self._ranges.covering(change.key):
                concerned.setdefault(range_watch, []).append(change)
        for range_watch in concerned:
            range_watch.fold(2 * len(written))

    def tell(self, revision: int, concerned: Mapping["ImageRangeWatch", list[Written]]) -> None:
        """Notify the watches that `note` found. The image holds the whole change set."""
        for range_watch, changes in concerned.items():
            range_watch.add(revision, changes)

    def fail(self, cause: BaseException) -> None:
        """Declare that no watch fires again. Readers get `cause` once they have read what was there."""
        self._failure = cause
        for key_watches in self._keys.values():
            for key_watch in key_watches:
                key_watch.signal.set()
        for range_watch in self._ranges:
            range_watch.signal.set()

    async def readable(self) -> None:
        """Return when the image shows complete change sets only. No pause follows before the return."""
        while self.showing is not None:
            await self.showing.wait()

    def raise_failure(self) -> None:
        """Raise the cause given to `fail`, if any."""
        if self._failure is not None:
            raise fresh(self._failure)

    def attach(self, watch: "ImageKeyWatch | ImageRangeWatch") -> None:
        """Let `fire` find the watch."""
        self._count += 1
        if isinstance(watch, ImageKeyWatch):
            self._keys.setdefault(watch.key, set()).add(watch)
        else:
            self._ranges.add(watch)

    def detach(self, watch: "ImageKeyWatch | ImageRangeWatch") -> None:
        """Undo `attach`."""
        self._count -= 1
        if isinstance(watch, ImageRangeWatch):
            self._ranges.remove(watch)
            return
        others = self._keys[watch.key]
        others.remove(watch)
        if not others:
            del self._keys[watch.key]


class ImageKeyWatch(KeyWatch):
    """A key watch without a queue: its reader looks at the image."""

    __slots__ = ("_image", "_returned", "_watches", "key", "signal")

    def __init__(self, watches: Watches, image: Image, key: str) -> None:
        self._watches = watches
        self._image = image
        self._returned = _NEVER
        self.key = key
        self.signal = Signal()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        self._watches.attach(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watches.detach(self)

    async def next(self) -> Record | None:
        """See `KeyWatch.next`. After a cancelled call, the next call returns the same."""
        await trio.lowlevel.checkpoint()
        while True:
            await self._watches.readable()
            record: Record | None = self._image.records.get(self.key)
            version = 0 if record is None else record.version
            if version != self._returned:
                self._returned = version
                return record
            self._watches.raise_failure()
            await self.signal.wait()


class ImageRangeWatch(RangeWatch):
    """A range watch: a bounded backlog of change sets, and beyond the bound their folded difference."""

    __slots__ = (
        "_backlog",
        "_backlog_keys",
        "_before",
        "_difference",
        "_image",
        "_listed",
        "_since_pause",
        "_taken",
        "_unfolded",
        "_watches",
        "end",
        "signal",
        "start",
    )

    def __init__(self, watches: Watches, image: Image, start: str, end: str) -> None:
        self._watches = watches
        self._image = image
        self.start = start
        self.end = end
        self.signal = Signal()
        self._since_pause = 0
        """Calls of `next` since the last one that let other tasks run."""
        self._listed = False
        self._before: dict[str, Record | None] | None = None
        """While the range is listed: the earlier records of keys that have changed since."""
        self._backlog: deque[tuple[int, list[Written]]] = deque()
        """Change sets to be returned one by one."""
        self._backlog_keys = 0
        self._difference: dict[str, Written] | None = None
        """Returned at once, because the backlog was too long; None while change sets are returned one by one."""
        self._unfolded: deque[Written] = deque()
        """What is not in the difference yet, oldest first."""
        self._taken: Steps[Change] | None = None
        """What the reader is about to return. If it is cancelled meanwhile, the next call continues with it."""

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._listed:
            self._watches.detach(self)
            self._listed = False

    async def next(self) -> Change:
        """See `RangeWatch.next`. A cancelled call consumes nothing."""
        if not self._backlog or self._since_pause >= CHANGES_AT_ONCE:
            await trio.lowlevel.checkpoint()
            self._since_pause = 0
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        self._since_pause += 1
        if not self._listed:
            return await self._list()
        while self._taken is None:
            await self._watches.readable()
            if self._backlog:
                revision, changes = self._backlog.popleft()
                self._backlog_keys -= len(changes)
                self._taken = _change(revision, changes)
            elif self._unfolded:
                self.fold(KEYS_AT_ONCE)
                await trio.lowlevel.checkpoint()
            elif self._difference is not None:
                if self._difference:
                    self._taken = _change(self._image.revision, list(self._difference.values()))
                self._difference = None
            else:
                self._watches.raise_failure()
                await self.signal.wait()
        change = await paced(self._taken)
        self._taken = None
        return change

    async def _list(self) -> Change:
        """The records at the step that attaches the watch. No change falls between the two (M14)."""
        await self._watches.readable()
        self._watches.attach(self)
        self._listed = True
        self._before = {}
        try:
            revision = self._image.revision
            found: dict[str, Record | None] = {}
            for number, key in enumerate(self._image.keys_between(self.start, self.end), 1):
                found[key] = self._image.records.get(key)
                if number % KEYS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            # The reader may have read a change set that is being shown. `add` gets it only when all of it is shown.
            await self._watches.readable()
            for key in self._before.keys() & found.keys():
                found[key] = self._before[key]
        except BaseException:
            self._watches.detach(self)
            self._listed = False
            self._backlog.clear()
            self._backlog_keys = 0
            self._difference = None
            self._unfolded.clear()
            raise
        finally:
            self._before = None
        return Change(revision, tuple(record for record in found.values() if record is not None))

    def add(self, revision: int, changes: list[Written]) -> None:
        """Note what a change set did in the range, and wake the reader."""
        if not self._listed:
            # Its listing was abandoned while the change set was being shown. The next listing holds all of it.
            return
        if self._before is not None:
            for change in changes:
                self._before.setdefault(change.key, change.old)
        if self._difference is None:
            self._backlog.append((revision, changes))
            self._backlog_keys += len(changes)
            # A single change set is kept as it is, however large, because folding would not make it smaller.
            if self._backlog_keys > BACKLOG_KEYS_MAX and len(self._backlog) > 1:
                self._difference = {}
                for _revision, earlier in self._backlog:
                    self._unfolded.extend(earlier)
                self._backlog.clear()
                self._backlog_keys = 0
        else:
            self._unfolded.extend(changes)
        self.signal.set()

    def fold(self, keys_max: int) -> None:
        """Add this many of the waiting changes to the difference.

        A key that appeared and disappeared leaves nothing.
        """
        difference = self._difference
        for _ in range(min(keys_max, len(self._unfolded))):
            assert difference is not None, "what is not folded belongs to a difference"
            change = self._unfolded.popleft()
            earlier = difference.get(change.key)
            old = change.old if earlier is None else earlier.old
            if old is None and change.new is None:
                difference.pop(change.key, None)
            else:
                difference[change.key] = Written(change.key, old, change.new)


class RangeTable:
    """Finds the ranges that cover a key.

    The starts and ends of all ranges cut the key space into pieces. Each piece knows which ranges cover it, and a
    bisection finds a key's piece. Adding a range costs as many steps as it has pieces inside.
    """

    __slots__ = ("_count", "_pieces")

    def __init__(self) -> None:
        # The piece that begins at "" always exists, so every key is in a piece.
        self._pieces: SortedDict[str, frozenset[ImageRangeWatch]] = SortedDict({"": frozenset()})
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ImageRangeWatch]:
        return iter(frozenset().union(*self._pieces.values()))

    @property
    def pieces(self) -> int:
        """How many pieces the key space is cut into."""
        return len(self._pieces)

    def covering(self, key: str) -> frozenset[ImageRangeWatch]:
        """The watches whose range contains `key`."""
        if not self._count:
            return frozenset()
        watches: frozenset[ImageRangeWatch] = self._pieces.peekitem(self._pieces.bisect_right(key) - 1)[1]
        return watches

    def add(self, watch: ImageRangeWatch) -> None:
        """Put a watch over its range."""
        self._count += 1
        for piece in self._cut(watch):
            self._pieces[piece] |= {watch}

    def remove(self, watch: ImageRangeWatch) -> None:
        """Remove a watch, and the cuts that are no longer needed."""
        self._count -= 1
        pieces = self._cut(watch)
        for piece in pieces:
            self._pieces[piece] -= {watch}
        for piece in (*pieces, watch.end):
            if piece and piece in self._pieces:
                before = self._pieces.peekitem(self._pieces.index(piece) - 1)[1]
                if before == self._pieces[piece]:
                    del self._pieces[piece]

    def _cut(self, watch: ImageRangeWatch) -> list[str]:
        if watch.start >= watch.end:
            return []
        for border in (watch.start, watch.end):
            if border not in self._pieces:
                self._pieces[border] = self._pieces.peekitem(self._pieces.bisect_right(border) - 1)[1]
        return list(self._pieces.irange(watch.start, watch.end, (True, False)))


def _change(revision: int, changes: list[Written]) -> Steps[Change]:
    """The `Change` for a reader. Uses the list up, because freeing many items at once takes as long as sorting them."""
    if len(changes) <= KEYS_AT_ONCE:
        changes.sort()
        records, deleted = _split(changes)
        return Change(revision, tuple(records), tuple(deleted))
    runs: list[list[Written]] = []
    while changes:
        runs.append(sorted(changes[-KEYS_AT_ONCE:], reverse=True))
        del changes[-KEYS_AT_ONCE:]
        yield
    merging = merge(*map(_used_up, runs))
    records, deleted = [], []
    while part := list(islice(merging, KEYS_AT_ONCE)):
        more_records, more_deleted = _split(part)
        records += more_records
        deleted += more_deleted
        yield
    return Change(revision, tuple(records), tuple(deleted))


def _split(changes: list[Written]) -> tuple[list[Record], list[str]]:
    records = [change.new for change in changes if change.new is not None]
    return records, [change.key for change in changes if change.new is None]


def _used_up(run: list[Written]) -> Iterator[Written]:
    while run:
        yield run.pop()
