"""A stream through splits, merges, removals and late layouts: each message once, parents before children."""

from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from tests.tidewire.spark.followed import OPTIONS, StoredSegment, Topics, X
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EntryPosition
from tidewire.spark.following import Follower
from tidewire.spark.layouts import LayoutChanged
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import BEGINNING, decode, encode, finished
from tidewire.spark.views import Snapshot

Answer = TypeVar("Answer")


class Story(Topics):
    """A topic whose layout reaches a stream late. Its segments are removed once the subscription has read them."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.sealed: set[int] = set()
        self.gone: dict[str, StoredSegment] = {}
        self.parents: dict[int, tuple[int, ...]] = {}
        """Of all segments, also those that were removed."""
        self.moved_to: dict[str, EntryPosition] = {}
        """Where the subscription is, of the segments in which it was moved."""
        self.begin(0, 0x7FFF)
        self.begin(0x8000, 0xFFFF)
        self.tell_layout()
        self.snapshot: Snapshot | None = None
        self.place = Follower(OPTIONS, self).first()
        self.read: dict[str, int] = {}
        """How many messages of each segment."""
        self.order: list[str] = []
        """The segments of one range after the other."""

    @property
    def there(self) -> list[StoredSegment]:
        return list(self.segments.get(X, {}).values())

    @property
    def active(self) -> list[StoredSegment]:
        return [one for one in self.there if one.part.segment_id not in self.sealed]

    def begin(self, first: int, last: int, *parents: StoredSegment) -> None:
        number = len(self.there) + len(self.gone)
        self.parents[number] = tuple(parent.part.segment_id for parent in parents)
        self.add(f"{first:04x}-{last:04x}-{number}", parents=self.parents[number])
        self.sealed |= {parent.part.segment_id for parent in parents}

    def send(self) -> None:
        """Send a message, also to a sealed segment, where open transactions commit."""
        segment = self.random.choice(self.there)
        if not segment.is_final:
            segment.entries.append(self.random.randint(1, 3))

    def split(self) -> None:
        parent = self.random.choice(self.active)
        first, last = parent.part.hashes or (0, 0)
        middle = (first + last) // 2
        self.begin(first, middle, parent)
        self.begin(middle + 1, last, parent)

    def merge(self) -> None:
        active = sorted(self.active, key=lambda segment: segment.part.hashes or (0, 0))
        if len(active) > 1:
            at = self.random.randrange(len(active) - 1)
            lower, upper = active[at : at + 2]
            self.begin((lower.part.hashes or (0, 0))[0], (upper.part.hashes or (0, 0))[1], lower, upper)

    def remove(self) -> None:
        """Remove a segment that is read to its end and whose parents are gone."""
        for name, segment in tuple(self.segments[X].items()):
            end = EntryPosition(segment.ledger, len(segment.entries) - 1) if segment.entries else BEGINNING.position
            if (
                segment.is_final
                and not segment.part.parent_ids
                and self.moved_to.get(name) == end
                and self.random.random() < 0.5
            ):
                self.gone[name] = self.segments[X].pop(name)
                for other in self.there:
                    left = tuple(parent for parent in other.part.parent_ids if parent != segment.part.segment_id)
                    other.part = other.part._replace(parent_ids=left)
                if self.random.random() < 0.5:
                    self.tell_layout()

    def move_subscription(self) -> None:
        """Move the subscription to the start of the next micro-batch, as a query does."""
        parts, places = self.parts(X) or {}, self.place[X]
        for name, place in places.items():
            if name in parts:
                self.moved_to[name] = place.position
        for part in finished(parts, places):
            segment = self.segments[X].get(part.name or "")
            if segment is not None and segment.entries:
                self.moved_to[part.name or ""] = EntryPosition(segment.ledger, len(segment.entries) - 1)
            elif segment is not None:
                self.moved_to[part.name or ""] = BEGINNING.position

    def was_read(self, topic: str, name: str, position: EntryPosition) -> bool:
        return self.moved_to.get(name) == position

    def decide(self) -> None:
        """Decide the open transactions of some sealed segments."""
        for segment in self.there:
            segment.is_final |= segment.part.segment_id in self.sealed and self.random.random() < 0.5

    def tell_layout(self) -> None:
        parts: dict[str, Segment] = {}
        for name, segment in self.segments[X].items():
            parts[name] = segment.part._replace(is_active=segment.part.segment_id not in self.sealed)
        self.late_layouts[X] = parts

    def stop_or_go_on(self) -> None:
        """Restart the query, so that it stops at the existing end, or does not any more."""
        self.snapshot = self.answer_to(lambda: Snapshot(self)) if self.snapshot is None else None

    def answer_to(self, ask: Callable[[], Answer]) -> Answer:
        """Answer again for a segment that is gone, with the layout that says so."""
        while True:
            try:
                return ask()
            except LayoutChanged:
                self.tell_layout()

    def step(self) -> bool:
        limit = Limit(self.random.choice([None, 1, 3]))
        follower = Follower(OPTIONS, self.snapshot or self, self.was_read)
        end = decode(encode(self.answer_to(lambda: follower.step(self.place, limit)).end))
        for name, place in end[X].items():
            begin = self.place[X].get(name, BEGINNING)
            if place.position > begin.position:
                assert self.read.get(name, 0) == begin.next_index
                self.read[name] = place.next_index
                self.order.append(name)
        self.move_subscription()
        start, self.place = self.place, end
        return end != start


@given(st.randoms(use_true_random=False))
def test_every_message_is_read_once_and_behind_those_of_its_segments_parents(random: Random) -> None:
    """T20: however late the layout arrives, and wherever micro-batches end."""
    story = Story(random)
    acts: list[Callable[[], object]] = [story.send, story.send, story.split, story.merge, story.decide]
    acts += [story.remove, story.tell_layout, story.stop_or_go_on, story.step, story.step]
    for _ in range(random.randint(5, 30)):
        random.choice(acts)()
    story.snapshot = None
    while story.step():
        pass
    for segment in story.there:
        segment.is_final = segment.part.segment_id in story.sealed
    story.tell_layout()
    while story.step():
        pass
    every = story.segments[X] | story.gone
    assert story.read == {name: sum(one.entries) for name, one in every.items() if one.entries}
    names = {one.part.segment_id: one.part.name for one in every.values()}
    for one in every.values():
        for parent in story.parents[one.part.segment_id]:
            before = [at for at, name in enumerate(story.order) if name == names[parent]]
            behind = [at for at, name in enumerate(story.order) if name == one.part.name]
            assert not before or not behind or before[-1] < behind[0]
