"""Publishes a query's progress as a subscription: tools see its lag, and brokers keep segments until they are read.

The subscription is a cursor on each segment. The query relies on Spark's checkpoint, and the cursors follow it after
each micro-batch. The query's planner holds the subscription, which keeps out a second query with the same one.
"""

from collections.abc import Mapping

from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.protocol.topic_names import segment_id_of
from tidewire.spark.brokers import Connect
from tidewire.spark.held_subscription import HeldSubscription
from tidewire.spark.layouts import is_gone
from tidewire.spark.offsets import Places, finished
from tidewire.spark.options import ReadOptions


class QuerySubscription:
    """See the module's docstring."""

    def __init__(self, name: str, options: ReadOptions, connect: Connect | None = None) -> None:
        """Open nothing yet."""
        self._held = HeldSubscription(name, options, connect)
        self._cursors: dict[tuple[str, str], EntryPosition] = {}
        """By topic and the part's name: the cursor's position when it was last known."""
        self._newest: dict[str, int] = {}
        """By topic: the newest part when the subscription was first held there."""

    def close(self) -> None:
        """Release the subscription. Its position stays."""
        self._held.close()

    def reset(self) -> None:
        """Forget the connections; new ones are made when needed."""
        self._held.reset()

    def move(self, topic: str, parts: Mapping[str, Segment], places: Places) -> None:
        """Move the cursors of a topic's segments to these places.

        Segments that are in none of the places, and that are not still to come, count as read.

        Raises:
            TidewireError: a broker refuses it, or could not be asked.
        """
        self._held.arrived()
        for name, part in parts.items():
            if name in places:
                try:
                    self._acknowledge(part, places[name].position)
                except Refused as refused:
                    # A fully acknowledged segment may be removed at any time.
                    if not (is_gone(refused) and self.held_until_read(topic, name, places[name].position)):
                        raise
        if any(self._held.is_open(part) for part in parts.values()):
            self._newest.setdefault(topic, max(part.segment_id for part in parts.values()))
        for part in finished(parts, places):
            if not self._held.is_passing_over(part):
                try:
                    self._finish(part)
                except Refused as refused:
                    if not is_gone(refused):
                        raise

    def held_until_read(self, topic: str, name: str, position: EntryPosition) -> bool:
        """Whether a removed part ended at `position`: brokers keep what the subscription has not acknowledged."""
        cursor = self._cursors.get((topic, name))
        if cursor is None:
            # The cursor of a new part begins at its beginning, and nobody else has moved it.
            return topic in self._newest and segment_id_of(name) > self._newest[topic]
        # The cursor may be ahead of the query: another query used the name before, or this one lost its checkpoint.
        return cursor <= position

    def _finish(self, part: Segment) -> None:
        self._acknowledge(part, self._held.end(part))
        # Only entries of aborted transactions are left.
        self._held.pass_over(part)

    def _acknowledge(self, part: Segment, position: EntryPosition) -> None:
        key = (part.topic, part.name or "")
        if key not in self._cursors or not self._held.is_open(part):
            # Ask even if nothing was read yet, which opens the consumer and so holds the subscription.
            self._cursors[key] = self._held.position(part)
        if position > self._cursors[key]:
            self._held.acknowledge(part, position)
            self._cursors[key] = position
