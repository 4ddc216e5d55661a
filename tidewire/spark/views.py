"""What a stream's planner sees of its topics.

A `View` is either the watch that brokers keep current (`watching.py`), or a `Snapshot` of it at one moment, for a query
that has to stop there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.spark.layouts import LayoutChanged
from tidewire.spark.measuring import BacklogRange


class View(Protocol):
    """What a stream's planner knows of its topics."""

    def topics(self) -> list[str]:
        """The topics to read."""

    def parts(self, topic: str) -> dict[str, Segment] | None:
        """A topic's parts by name; None when there is no such topic."""

    def behind(
        self,
        part: Segment,
        after: EntryPosition,
        *,
        messages_max: int | None = None,
        bytes_max: int | None = None,
        until_ms: int | None = None,
    ) -> BacklogRange:
        """What follows a position in a part; with `until_ms`, nothing that the broker stored later.

        Raises:
            LayoutChanged: the part is gone.
        """

    def opening(self, part: Segment) -> BacklogRange:
        """All of a part, or its beginning.

        Raises:
            LayoutChanged: the part is gone.
        """

    def since(self, part: Segment, time_ms: int) -> EntryPosition:
        """The position behind which everything was stored at this time or later.

        Raises:
            LayoutChanged: the part is gone.
        """

    def forget(self, part: Segment) -> None:
        """The stream no longer reads the part."""


class Snapshot:
    """A view at one moment. It hides what comes later. What is removed later shows only when it is asked about."""

    def __init__(self, view: View) -> None:
        """Ask for the end of every part.

        Raises:
            TidewireError: no broker could be asked.
        """
        self._view = view
        self._parts = {topic: view.parts(topic) for topic in view.topics()}
        self._ends: dict[str, BacklogRange] = {
            part.wire_name: view.behind(part, EARLIEST)
            for parts in self._parts.values()
            for part in (parts or {}).values()
        }

    def topics(self) -> list[str]:
        """See `View`."""
        return list(self._parts)

    def parts(self, topic: str) -> dict[str, Segment] | None:
        """See `View`."""
        return self._parts.get(topic)

    def opening(self, part: Segment) -> BacklogRange:
        """See `View`."""
        return self._ends[part.wire_name]

    def behind(
        self,
        part: Segment,
        after: EntryPosition,
        *,
        messages_max: int | None = None,
        bytes_max: int | None = None,
        until_ms: int | None = None,
    ) -> BacklogRange:
        """See `View`."""
        whole = self._ends[part.wire_name]
        if after >= whole.end:
            return BacklogRange(after, after, whole.next_index, 0, 0, None, whole.is_final, creation=whole.creation)
        with self._noticing_changes(part):
            found = self._view.behind(part, after, messages_max=messages_max, bytes_max=bytes_max, until_ms=until_ms)
            if found.end <= whole.end:
                return found._replace(is_final=whole.is_final and found.end == whole.end)
            # Indexes have no gaps, so this number of messages ends where the snapshot ended.
            cut = self._view.behind(part, after, messages_max=max(1, whole.next_index - found.first_index))
            return cut._replace(is_final=whole.is_final)

    def since(self, part: Segment, time_ms: int) -> EntryPosition:
        """See `View`."""
        with self._noticing_changes(part):
            return min(self._view.since(part, time_ms), self._ends[part.wire_name].end)

    @contextmanager
    def _noticing_changes(self, part: Segment) -> Iterator[None]:
        try:
            yield
        except LayoutChanged:
            left = self._view.parts(part.topic)
            before = self._parts[part.topic] or {}
            self._parts[part.topic] = None if left is None else {name: before[name] for name in before if name in left}
            raise

    def forget(self, part: Segment) -> None:
        """See `View`."""
        self._view.forget(part)
