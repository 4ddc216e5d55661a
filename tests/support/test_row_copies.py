"""The judge of Spark's copies gets correct outcomes, and outcomes with one error each."""

import re
from collections.abc import Callable

import pytest

from tests.support.history import Fate, History, Place, Read
from tests.support.row_copies import Copy, judge, parse_place


class Story:
    """Four transactions, one of each fate, each with two keys. The committed and unknown ones are read and copied."""

    def __init__(self) -> None:
        self.history = History()
        self.inputs: list[Read] = []
        self.hidden: dict[Fate, list[Copy]] = {}
        for number, fate in enumerate((Fate.COMMITTED, Fate.ABORTED, Fate.UNKNOWN, Fate.OPEN, Fate.COMMITTED)):
            transaction = self.history.begin((0, number))
            transaction.fate = fate
            for segment, key in enumerate(("a", "b")):
                sent = self.history.send(transaction, key)
                sent.place = Place(segment, 10 + segment, number, -1)
                read = Read(sent.place, key, sent.value(padding=5))
                if fate in {Fate.COMMITTED, Fate.UNKNOWN}:
                    self.inputs.append(read)
                else:
                    self.hidden.setdefault(fate, []).append(Copy(f"leak {key}", *read))
        self.copies = [Copy(f"row {number}", *read) for number, read in enumerate(self.inputs)]

    def judge(self) -> list[str]:
        return judge(self.history, self.inputs, self.copies)


def test_an_outcome_that_can_be_is_not_complained_of() -> None:
    assert Story().judge() == []


def test_an_unanswered_commit_may_have_done_nothing_if_nobody_sees_anything_of_it() -> None:
    story = Story()
    del story.inputs[2:4], story.copies[2:4]
    assert story.judge() == []


def lose(story: Story) -> None:
    del story.copies[0]


def lose_what_others_see_of_an_unanswered_commit(story: Story) -> None:
    del story.copies[2:4]


def double(story: Story) -> None:
    story.copies.append(story.copies[-1]._replace(where="row 9"))


def leak_of_an_aborted_one(story: Story) -> None:
    story.copies.append(story.hidden[Fate.ABORTED][0])


def leak_of_an_open_one(story: Story) -> None:
    story.copies.append(story.hidden[Fate.OPEN][1])


def tear_an_unanswered_commit(story: Story) -> None:
    del story.inputs[3], story.copies[3]


def reorder(story: Story) -> None:
    story.copies.insert(0, story.copies.pop(-2))


def change_a_value(story: Story) -> None:
    story.copies[0] = story.copies[0]._replace(value=b"0.0.........")


def change_a_key(story: Story) -> None:
    story.copies[0] = story.copies[0]._replace(key="c")


def change_a_place(story: Story) -> None:
    story.copies[0] = story.copies[0]._replace(place=Place(7, 7, 7, -1))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lose, r"transaction 0 .*: 1 of its 2 messages are missing.*\n.*in segment 0 at 10:0\[-1\] was never put away"),
        (lose_what_others_see_of_an_unanswered_commit, r"b'2\.0.*was never put away\n.*b'2\.1.*was never put away"),
        (double, r"message 4\.1 was read from .* and again.*\n.*was put into row 5 and again into row 9"),
        (leak_of_an_aborted_one, r"transaction 1 .*aborted\): 1 of its 2 messages can be seen.*\nleak a .* be read"),
        (leak_of_an_open_one, r"transaction 3 .*open\): 1 of its 2 messages can be seen"),
        (tear_an_unanswered_commit, r"transaction 2 .*unknown\): 1 of its 2 messages are missing"),
        (reorder, r"key a: message 0\.0 .* was read after message 4\.0, sent later"),
        (change_a_value, r"row 0 is another message than that in segment 0"),
        (change_a_key, r"sent with key a and read with key c"),
        (
            change_a_place,
            r"was acknowledged in segment 0 .* and read from segment 7.*(\n.*)*which cannot be read there",
        ),
    ],
)
def test_each_way_to_be_wrong_is_complained_of(wrong: Callable[[Story], None], complaint: str) -> None:
    story = Story()
    wrong(story)
    assert re.search(complaint, "\n".join(story.judge()))


def test_a_place_is_read_as_the_job_writes_it() -> None:
    assert parse_place("0000-7fff-12 5 41 -1") == Place(12, 5, 41, -1)
    with pytest.raises(ValueError):
        parse_place("5 41")
