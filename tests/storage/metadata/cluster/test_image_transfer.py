"""A whole image in parts: whatever the follower held before, it ends with the controller's state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.batches import Point
from storage.metadata.cluster import image_transfer
from storage.metadata.cluster.image_transfer import Difference, FirstImage, image_parts
from storage.metadata.cluster.messages import ImagePart, Place
from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.record_codec import CorruptRecord, encode
from storage.metadata.records import EPOCHS_LEVEL, SnapshotFooter, TakeOver
from storage.metadata.snapshots import SLICE_RECORDS_MAX, View
from storage.metadata.steps import KEYS_AT_ONCE, finished
from storage.metadata.store import Delete, IndexEntry, Op, Put, PutSequential, Record

KEYS = [f"/{letter}" for letter in "abcdefgh"]


class Writes:
    """An image that a controller has, and what it does to it."""

    def __init__(self) -> None:
        self.image = Image()
        self.image.settle()
        self._apply(lambda delta: delta.set_feature_level(EPOCHS_LEVEL))
        self.image.apply([TakeOver(0, 1, "b1", None)])
        self._numbers = 0

    def _apply(self, decide: object) -> None:
        delta = Delta(self.image)
        decide(delta)  # type: ignore[operator]
        for change_set in delta.change_sets:
            self.image.apply(change_set)

    def commit(self, *ops: Op) -> None:
        """Apply a change set."""
        self._apply(lambda delta: delta.commit(ops))

    def open(self) -> int:
        """Open a session, and note the outcome of a write of it."""

        def decide(delta: Delta) -> None:
            session = delta.open_session(1000, "b", 7)
            self._numbers += 1
            delta.answer(WriteId(session, 1, 1), Made(session))

        self._apply(decide)
        return self.image.revision

    def end(self, session: int) -> None:
        """End a session."""
        self._apply(lambda delta: delta.end_sessions([session]))

    @property
    def place(self) -> Place:
        """The place of the image, with any point."""
        return Place(1, Point(9, 9), self.image.revision)

    def parts(self) -> list[ImagePart]:
        """The image in parts."""
        return list(image_parts(View(self.image, Point(9, 9)), self.place))


def state(image: Image) -> object:
    """Everything in an image, as a comparable value."""
    return (
        image.revision,
        image.sequence,
        image.feature_level,
        image.taken_over,
        {session: (live.owner, live.nonce, sorted(live.keys)) for session, live in image.sessions.items()},
        image.scan("", "\U0010ffff", None),
        image.query("i", "", "\U0010ffff", None),
        sorted(image.outcomes.each()),
    )


def copy(image: Image) -> Image:
    """An image that is like another one."""
    writes = Writes()
    writes.image = image
    made = Image()
    made.settle()
    arriving = FirstImage(writes.place)
    for part in writes.parts():
        finished(arriving.take(part.records))
    arriving.give_to(made)
    return made


class Session(int):
    """A session of another process."""

    @property
    def id(self) -> int:
        """See `NamesSession`."""
        return int(self)


def draw(writes: Writes, steps: list[tuple[int, int]]) -> None:
    """Do what was drawn: puts with and without sessions, deletions, sequences, sessions' ends."""
    for kind, number in steps:
        key = KEYS[number % len(KEYS)]
        sessions = list(writes.image.sessions)
        if kind == 0:
            writes.commit(Put(key, b"%d" % number, indexes=(IndexEntry("i", str(number)),)))
        elif kind == 1:
            writes.commit(Delete(key))
        elif kind == 2:
            writes.commit(PutSequential("/n", b"", "p"))
        elif kind == 3:
            writes.open()
        elif sessions and kind == 4:
            writes.commit(Put(key, b"e", session=Session(sessions[number % len(sessions)])))
        elif sessions:
            writes.end(sessions[number % len(sessions)])


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=40)


@given(before=STEPS, after=STEPS, slice_records=st.integers(1, 5))
def test_the_difference_makes_the_images_equal(
    before: list[tuple[int, int]], after: list[tuple[int, int]], slice_records: int
) -> None:
    """M15, C5: records, indexes, sessions, outcomes, counter and revision; a range watch can follow each change."""
    writes = Writes()
    draw(writes, before)
    own = copy(writes.image)
    assert state(own) == state(writes.image)
    draw(writes, after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_transfer, "SLICE_RECORDS_MAX", slice_records)
        parts = writes.parts()
    difference = Difference(writes.place, own)
    held = state(own)
    for part in parts:
        finished(difference.take(part.records))
    assert state(own) == held, "nothing shows before the last part"
    change_set = finished(difference.finish(own))
    written = own.apply(change_set)
    assert len({change.key for change in written}) == len(written), "each key changes at most once"
    assert state(own) == state(writes.image)
    # It is a state like any other, so the next change sets fit it.
    copied = Writes()
    copied.image = own
    draw(copied, [(0, 1), (2, 0), (5, 0), (3, 0)])


@given(before=STEPS)
def test_a_first_image_that_is_watched_is_shown(before: list[tuple[int, int]]) -> None:
    """M14: a watch that was opened while the first image came sees all of it as one change."""
    writes = Writes()
    draw(writes, before)
    own = Image()
    own.settle()
    arriving = FirstImage(writes.place)
    for part in writes.parts():
        finished(arriving.take(part.records))
    written = own.apply(finished(arriving.finish(own)))
    assert sorted(change.key for change in written) == sorted(writes.image.records)
    assert state(own) == state(writes.image)


def test_an_equal_image_differs_in_nothing() -> None:
    """C5: nothing is shown to watches for what did not change."""
    writes = Writes()
    draw(writes, [(0, 1), (3, 0), (4, 2), (2, 0)])
    own = copy(writes.image)
    difference = Difference(writes.place, own)
    for part in writes.parts():
        finished(difference.take(part.records))
    assert own.apply(finished(difference.finish(own))) == []


def test_no_step_grows_with_the_image() -> None:
    """E7: a part has a bounded number of records, and comparing it with any number of own keys is in steps."""
    writes = Writes()
    for number in range(0, 5000, 500):
        writes.commit(*(Put(f"/k/{key:05d}", b"") for key in range(number, number + 500)))
    own = copy(writes.image)
    parts = writes.parts()
    assert len(parts) > 5000 / SLICE_RECORDS_MAX
    writes.commit(*(Delete(f"/k/{key:05d}") for key in range(4900)))
    difference = Difference(writes.place, own)
    steps = 0
    for part in writes.parts():
        for _step in difference.take(part.records):
            steps += 1
    assert steps >= 4900 // KEYS_AT_ONCE
    for _step in difference.finish(own):
        steps += 1


@pytest.mark.parametrize("part", [b"\xff", encode(SnapshotFooter(1))])
def test_what_does_not_belong_in_an_image_is_refused(part: bytes) -> None:
    """E8: also by a follower that holds something already."""
    for arriving in (FirstImage(Writes().place), Difference(Writes().place, Image())):
        with pytest.raises(CorruptRecord):
            finished(arriving.take(part))


def test_a_record_of_an_unknown_session_is_refused() -> None:
    """E8: in a first image, sessions come before their records."""
    with pytest.raises(KeyError):
        finished(FirstImage(Writes().place).take(encode(Record("/a", b"", 1, session=5))))
