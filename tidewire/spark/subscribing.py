"""A query's place as a broker subscription, so that other tools see its lag, and segments stay until it has read them.

The subscription is a cursor on each segment. Spark's checkpoint is what the query goes by; these follow it, each time
that a micro-batch is processed. The query's planner holds it, which keeps a second query of the same name out.
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
        """Nothing is opened yet."""
        self._held = HeldSubscription(name, options, connect)
        self._cursors: dict[tuple[str, str], EntryPosition] = {}
        """By topic and the part's name, where it was when it was held last."""
        self._newest: dict[str, int] = {}
        """By topic, the newest part that there was when the subscription was held there first."""

    def close(self) -> None:
        """Leave the subscription where it is."""
        self._held.close()

    def reset(self) -> None:
        """Forget the connections; others are made when they are needed."""
        self._held.reset()

    def move(self, topic: str, parts: Mapping[str, Segment], places: Places) -> None:
        """Move the cursors of a topic's segments to these places.

        Segments that are in none of them, and whose turn is not to come, were read.

        Raises:
            TidewireError: a broker refuses it, or cannot be asked.
        """
        self._held.arrived()
        for name, part in parts.items():
            if name in places:
                try:
                    self._acknowledge(part, places[name].position)
                except Refused as refused:
                    # A segment that everybody has read may go at any time.
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
        """Whether a part that was removed ended there: nothing behind the subscription would have gone."""
        cursor = self._cursors.get((topic, name))
        if cursor is None:
            # Brokers begin the cursor of a part that is new at its beginning, and nobody else has moved it since.
            return topic in self._newest and segment_id_of(name) > self._newest[topic]
        # It may be further than the query, of which another one had its name, or which lost its checkpoint.
        return cursor <= position

    def _finish(self, part: Segment) -> None:
        self._acknowledge(part, self._held.end(part))
        # Nothing is left to be sent, but entries of aborted transactions.
        self._held.pass_over(part)

    def _acknowledge(self, part: Segment, position: EntryPosition) -> None:
        key = (part.topic, part.name or "")
        if key not in self._cursors or not self._held.is_open(part):
            # Where nothing was read yet the subscription is held, too.
            self._cursors[key] = self._held.position(part)
        if position > self._cursors[key]:
            self._held.acknowledge(part, position)
            self._cursors[key] = position
