"""A stream through stories of splits, merges and late layouts: every message once, parents before children."""

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.tidewire.spark.test_following import OPTIONS, Segment, Topics, X
from tidewire.spark.following import Follower, Snapshot
from tidewire.spark.layouts import Part
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import BEGINNING, decode, encode


class Story(Topics):
    """A topic whose layout a stream hears of late."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.sealed: set[int] = set()
        for _ in range(random.randint(1, 2)):
            self.begin()
        self.tell_layout()
        self.snapshot: Snapshot | None = None
        self.place = Follower(OPTIONS, self).first()
        self.read: dict[str, int] = {}
        """How many messages of each segment."""
        self.order: list[str] = []
        """The segments of one range after the other."""

    @property
    def there(self) -> list[Segment]:
        return list(self.segments[X].values())

    @property
    def active(self) -> list[Segment]:
        return [one for one in self.there if one.part.number not in self.sealed]

    def begin(self, *parents: Segment) -> None:
        number = len(self.segments.get(X, ()))
        self.add(f"0000-ffff-{number}", parents=tuple(parent.part.number for parent in parents))
        self.sealed |= {parent.part.number for parent in parents}

    def send(self) -> None:
        """Also to a sealed one: what was open there is committed."""
        segment = self.random.choice(self.there)
        if not segment.is_final:
            segment.entries.append(self.random.randint(1, 3))

    def split(self) -> None:
        parent = self.random.choice(self.active)
        self.begin(parent)
        self.begin(parent)

    def merge(self) -> None:
        if len(self.active) > 1:
            self.begin(*self.random.sample(self.active, 2))

    def decide(self) -> None:
        """Nothing is open any more in some of the sealed ones."""
        for segment in self.there:
            segment.is_final |= segment.part.number in self.sealed and self.random.random() < 0.5

    def tell_layout(self) -> None:
        parts: dict[str, Part] = {}
        for name, segment in self.segments[X].items():
            parts[name] = segment.part._replace(is_sealed=segment.part.number in self.sealed)
        self.late_layouts[X] = parts

    def stop_or_go_on(self) -> None:
        """The query is started again, so that it stops at what there is, or does not any more."""
        self.snapshot = Snapshot(self) if self.snapshot is None else None

    def step(self) -> bool:
        limit = Limit(self.random.choice([None, 1, 3]))
        end = decode(encode(Follower(OPTIONS, self.snapshot or self).step(self.place, limit).end))
        for name, place in end[X].items():
            begin = self.place[X].get(name, BEGINNING)
            if place.position > begin.position:
                assert self.read.get(name, 0) == begin.next_index
                self.read[name] = place.next_index
                self.order.append(name)
        start, self.place = self.place, end
        return end != start


@given(st.randoms(use_true_random=False))
def test_every_message_is_read_once_and_behind_those_of_its_segments_parents(random: Random) -> None:
    """T20: however late the layout is told, and wherever micro-batches end."""
    story = Story(random)
    acts: list[Callable[[], object]] = [story.send, story.send, story.split, story.merge, story.decide]
    acts += [story.tell_layout, story.stop_or_go_on, story.step, story.step]
    for _ in range(random.randint(5, 30)):
        random.choice(acts)()
    story.snapshot = None
    while story.step():
        pass
    for segment in story.there:
        segment.is_final = segment.part.number in story.sealed
    story.tell_layout()
    while story.step():
        pass
    assert story.read == {name: sum(one.entries) for name, one in story.segments[X].items() if one.entries}
    names = {one.part.number: one.part.name for one in story.there}
    for one in story.there:
        for parent in one.part.parents:
            before = [at for at, name in enumerate(story.order) if name == names[parent]]
            behind = [at for at, name in enumerate(story.order) if name == one.part.name]
            assert not before or not behind or before[-1] < behind[0]
