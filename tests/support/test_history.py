"""The judge of the kill loop gets correct outcomes, and outcomes with one error each."""

import re
from collections.abc import Callable

import pytest

from tests.support.history import COMPLAINTS_MAX, Fate, History, Place, Read, Sent, Transaction


class Story:
    """Two keys and four transactions, one of each fate, each with both keys. Committed and unknown ones are visible."""

    def __init__(self) -> None:
        self.history = History()
        self.by_fate: dict[Fate, Transaction] = {}
        self.reads: list[Read] = []
        for number, fate in enumerate((Fate.COMMITTED, Fate.ABORTED, Fate.UNKNOWN, Fate.OPEN)):
            transaction = self.by_fate[fate] = self.history.begin((0, number))
            transaction.fate = fate
            for segment, key in enumerate(("a", "b")):
                sent = self.history.send(transaction, key)
                sent.place = Place(segment, 10 + segment, number, -1)
                if fate in {Fate.COMMITTED, Fate.UNKNOWN}:
                    self.reads.append(read_of(sent))


def read_of(sent: Sent) -> Read:
    assert sent.place is not None
    return Read(sent.place, sent.key, sent.value(padding=7))


def test_an_outcome_that_can_be_is_not_complained_of() -> None:
    story = Story()
    assert story.history.judge(story.reads) == []
    assert story.history.count(Fate.COMMITTED) == 1


def test_an_unanswered_commit_may_also_have_done_nothing() -> None:
    story = Story()
    del story.reads[2:]
    assert story.history.judge(story.reads) == []


def test_a_message_without_receipt_may_stand_anywhere() -> None:
    story = Story()
    story.by_fate[Fate.UNKNOWN].sent[1].place = None
    assert story.history.judge(story.reads) == []


def forget_one_of_a_commit(story: Story) -> None:
    del story.reads[0]


def forget_one_of_an_unanswered_commit(story: Story) -> None:
    del story.reads[2]


def show_an_aborted(story: Story) -> None:
    story.reads.insert(1, read_of(story.by_fate[Fate.ABORTED].sent[0]))


def show_an_unfinished(story: Story) -> None:
    story.reads.append(read_of(story.by_fate[Fate.OPEN].sent[1]))


def repeat(story: Story) -> None:
    story.reads.append(story.reads[-1]._replace(place=Place(1, 11, 9, -1)))
    story.by_fate[Fate.UNKNOWN].sent[1].place = None


def swap(story: Story) -> None:
    story.reads[0], story.reads[2] = story.reads[2], story.reads[0]


def move(story: Story) -> None:
    story.reads[0] = story.reads[0]._replace(place=Place(0, 10, 7, -1))


def rename(story: Story) -> None:
    story.reads[0] = story.reads[0]._replace(key="c")


def invent(story: Story) -> None:
    story.reads.append(Read(Place(0, 10, 9, -1), "a", b"9.0."))


def garble(story: Story) -> None:
    story.reads.append(Read(Place(0, 10, 9, -1), "a", b"anything"))


def give_a_position_twice(story: Story) -> None:
    # Of two that are never seen: nobody would notice by reading.
    one, other = story.by_fate[Fate.ABORTED].sent
    other.place = one.place


def give_an_entry_twice(story: Story) -> None:
    story.by_fate[Fate.OPEN].sent[0].place = Place(0, 10, 1, 3)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (
            forget_one_of_a_commit,
            r"transaction 0 \(id 0,0x0, committed\): 1 of its 2 messages are missing: 0 in segment 0",
        ),
        (forget_one_of_an_unanswered_commit, r"transaction 2 .*unknown.* are missing: 0 in"),
        (show_an_aborted, r"transaction 1 .*aborted.*: 1 of its 2 messages can be seen: 0 in"),
        (show_an_unfinished, r"transaction 3 .*open.*: 1 of its 2 messages can be seen: 1 in"),
        (repeat, r"message 2\.1 was read from segment 1 at 11:2\[-1\] and again from segment 1 at 11:9"),
        (swap, r"key a: message 0\.0 from .* was read after message 2\.0, sent later"),
        (move, r"message 0\.0 was acknowledged in segment 0 at 10:0\[-1\] and read from segment 0 at 10:7"),
        (rename, r"message 0\.0 was sent with key a and read with key c"),
        (invent, r"nobody sent b'9\.0\.'"),
        (garble, r"nobody sent b'anything'"),
        (give_a_position_twice, r"message 1\.0 and message 1\.1 were both acknowledged in segment 0 at 10:1"),
        (give_an_entry_twice, r"transaction 1 .* and transaction 3 .* were both given entry 10:1"),
    ],
)
def test_each_broken_promise_is_told(damage: Callable[[Story], None], complaint: str) -> None:
    story = Story()
    damage(story)
    (told,) = story.history.judge(story.reads)
    assert re.search(complaint, told), told


def test_what_comes_again_to_a_consumer_is_judged_by_its_first_coming() -> None:
    story = Story()
    assert story.history.judge_again(story.reads + story.reads) == []
    assert story.history.judge(story.reads + story.reads) != []
    swap(story)
    assert story.history.judge_again(story.reads) != []


def test_a_broken_outcome_is_not_told_at_any_length() -> None:
    story = Story()
    story.reads *= 100
    assert len(story.history.judge(story.reads)) == COMPLAINTS_MAX
