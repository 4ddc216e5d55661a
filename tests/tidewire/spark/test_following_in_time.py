"""A stream through splits, merges and uneven rates: all segments advance together by publish time."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.tidewire.spark.followed import OPTIONS, StoredSegment, Topics, X
from tidewire.spark.following import Follower
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import BEGINNING, decode, encode
from tidewire.spark.views import Snapshot


class History(Topics):
    """A topic that is written, split and merged; everything in it is decided."""

    def __init__(self, random: Random, *, steps_back: bool) -> None:
        super().__init__()
        self.random = random
        self.steps_back = steps_back
        self.clock = 1_000
        self.active: list[StoredSegment] = []
        self.floor: dict[int, int] = {}
        """The latest moment of what a segment came from; nothing in it was sent earlier, whatever the clock said."""
        for first, last in ((0, 0x7FFF), (0x8000, 0xFFFF)):
            self.begin(first, last)
        self.read: dict[str, int] = {}
        self.latest_read = 0
        self.place = Follower(OPTIONS, self).first()

    def begin(self, first: int, last: int, *parents: StoredSegment) -> None:
        number = len(self.segments.get(X, {}))
        self.floor[number] = 0
        for parent in parents:
            parent.is_final = True
            self.active.remove(parent)
            ended = max([*parent.times, self.floor[parent.part.segment_id]])
            self.floor[number] = max(self.floor[number], ended)
        made = self.add(f"{first:04x}-{last:04x}-{number}", parents=tuple(one.part.segment_id for one in parents))
        self.active.append(made)

    def act(self) -> None:
        if self.random.random() < 0.75:
            self.clock += self.random.choice((0, 0, 1, 1, 5, 300))
            if self.steps_back and self.random.random() < 0.1:
                self.clock -= 40
            for _ in range(self.random.choice((1, 1, 1, 6))):
                segment = self.random.choice(self.active)
                segment.entries.append(self.random.randint(1, 3))
                segment.times.append(max(self.clock, *segment.times[-1:], 0))
        elif self.random.random() < 0.6 or len(self.active) == 1:
            parent = self.random.choice(self.active)
            first, last = parent.part.hashes or (0, 0)
            middle = (first + last) // 2
            parents = [parent]
            self.begin_all((first, middle), (middle + 1, last), parents=parents)
        else:
            self.active.sort(key=lambda one: one.part.hashes or (0, 0))
            at = self.random.randrange(len(self.active) - 1)
            lower, upper = self.active[at : at + 2]
            self.begin((lower.part.hashes or (0, 0))[0], (upper.part.hashes or (0, 0))[1], lower, upper)

    def begin_all(self, *ranges: tuple[int, int], parents: list[StoredSegment]) -> None:
        for first, last in ranges:
            if parents[0] not in self.active:
                self.active.append(parents[0])
            self.begin(first, last, *parents)

    def sent_at(self, segment: StoredSegment, entry: int) -> int:
        return max(segment.times[entry], self.floor[segment.part.segment_id])

    def step(self, follower: Follower, limit: Limit) -> bool:
        """Run one micro-batch; return whether it had rows."""
        end = decode(encode(follower.step(self.place, limit).end))
        for name, place in end[X].items():
            begin = self.place[X].get(name, BEGINNING)
            if place.position > begin.position:
                segment = self.segments[X][name]
                assert self.read.get(name, 0) == begin.next_index
                for parent in segment.part.parent_ids:
                    one = next(one for one in self.segments[X].values() if one.part.segment_id == parent)
                    assert self.left(one) == [], "a key's messages come in order"
                self.read[name] = place.next_index
                self.latest_read = max(self.latest_read, self.sent_at(segment, place.position.entry))
        start, self.place = self.place, end
        return end != start

    def left(self, segment: StoredSegment) -> list[int]:
        """Return the publish times of a segment's unread messages."""
        upto = self.read.get(segment.part.name or "", 0)
        entries = range(len(segment.entries))
        return [self.sent_at(segment, entry) for entry in entries if sum(segment.entries[: entry + 1]) > upto]

    def oldest_left(self) -> int:
        return min((time for one in self.segments[X].values() for time in self.left(one)), default=1 << 62)


@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_nothing_unread_is_older_than_what_was_read(seed: int, steps_back: bool, stops: bool) -> None:
    """E23: this holds at the end of each micro-batch of a replay, during new writes and through a restart."""
    random = Random(seed)
    story = History(random, steps_back=steps_back)
    for _ in range(random.randint(5, 60)):
        story.act()
    follower = Follower(OPTIONS, Snapshot(story) if stops else story)
    limit = Limit(random.choice([None, 1, 4, 20]), random.choice([None, None, 60]))
    for _ in range(500):
        # What comes by a clock that is behind what was read was late when it was live.
        if not steps_back and random.random() < 0.2:
            story.act()
        is_more = story.step(follower, limit)
        assert story.latest_read <= story.oldest_left()
        if not is_more:
            break
    story.place = decode(encode(story.place))
    while story.step(Follower(OPTIONS, story), limit):
        assert story.latest_read <= story.oldest_left()
    assert story.oldest_left() == 1 << 62


def test_one_that_waits_for_an_open_transaction_holds_nobody() -> None:
    """E23: its decision may come at any time; it is as late in the replay as it was live."""
    topics = Topics()
    parent = topics.add("0000-7fff-0", 1)
    topics.add("8000-ffff-1", 1, 1, 1).times = [1, 50, 90]
    topics.add("0000-3fff-2", 1, parents=(0,)).times = [20]
    topics.add("4000-7fff-3", parents=(0,))
    start = Follower(OPTIONS, topics).first()
    end = Follower(OPTIONS, topics).step(start, Limit()).end
    assert encode(end)[X] == {"0000-7fff-0": "1:0@1", "8000-ffff-1": "2:2@3"}
    parent.is_final = True
    assert encode(Follower(OPTIONS, topics).step(start, Limit()).end)[X]["8000-ffff-1"] == "2:0@1"


def test_idle_generations_between_do_not_hide_what_comes_of_them() -> None:
    """E23: an empty child was split again."""
    topics = Topics()
    topics.add("0000-7fff-0", 1).is_final = True
    topics.add("8000-ffff-1", 1, 1, 1).times = [1, 50, 90]
    topics.add("0000-3fff-2", parents=(0,)).is_final = True
    topics.add("4000-7fff-3", parents=(0,))
    topics.add("0000-1fff-4", 1, parents=(2,)).times = [60]
    topics.add("2000-3fff-5", parents=(2,))
    start = Follower(OPTIONS, topics).first()
    assert encode(Follower(OPTIONS, topics).step(start, Limit()).end)[X]["8000-ffff-1"] == "2:1@2"
