"""The judge of the kill loop's pipelines gets correct outcomes, and outcomes with one error each."""

import re
from collections.abc import Callable

import pytest

from tests.support.copies import END, Copies, Piece
from tests.support.history import Fate, History, Place, Read


class Story:
    """Three messages of one key and one of another, in a committed, an aborted, an unknown and an open piece."""

    def __init__(self) -> None:
        self.history = History()
        transaction = self.history.begin((0, 0))
        transaction.fate = Fate.COMMITTED
        self.values = [self.history.send(transaction, key).value(padding=9) for key in ("a", "a", "a", "b")]
        self.inputs = [Read(Place(0, 1, number, -1), "a", value) for number, value in enumerate(self.values)]
        self.copies = Copies()
        self.by_fate: dict[Fate, Piece] = {}
        for fate, values in (
            (Fate.ABORTED, self.values[:2]),
            (Fate.COMMITTED, self.values[:2]),
            (Fate.UNKNOWN, self.values[2:]),
            (Fate.OPEN, self.values[3:]),
        ):
            piece = self.by_fate[fate] = self.copies.begin((0, len(self.by_fate)), values)
            piece.fate = fate
        self.outputs = [
            *(self.copy(Fate.COMMITTED, number) for number in (0, 1)),
            *(self.copy(Fate.UNKNOWN, number) for number in (2, 3)),
            Read(Place(0, 9, 9, -1), "a", END + b".0"),
        ]

    def copy(self, fate: Fate, number: int) -> Read:
        key = "ab"[number == 3]
        return Read(Place(0, 7, number, -1), key, self.by_fate[fate].copy_of(self.values[number]))

    def judge(self) -> list[str]:
        return self.copies.judge(self.history, self.inputs, self.outputs, is_ordered=True)


def test_an_outcome_that_can_be_is_not_complained_of() -> None:
    assert Story().judge() == []


def test_what_an_unanswered_transaction_sent_need_not_be_copied() -> None:
    """Nobody knew that it would be visible."""
    story = Story()
    story.history.transactions[0].fate = Fate.UNKNOWN
    del story.outputs[2:]
    assert story.judge() == []


def lose(story: Story) -> None:
    """Acknowledge messages without a copy."""
    del story.outputs[2:4]


def repeat(story: Story) -> None:
    """Copy messages again, as if the acknowledgement was lost."""
    again = story.copies.begin((1, 1), story.values[:1])
    again.fate = Fate.COMMITTED
    story.outputs.insert(2, Read(Place(0, 8, 0, -1), "c", again.copy_of(story.values[0])))


def show_an_aborted(story: Story) -> None:
    story.outputs[:2] = [story.copy(Fate.ABORTED, number) for number in (0, 1)]


def show_half(story: Story) -> None:
    del story.outputs[3]


def swap(story: Story) -> None:
    story.outputs[0], story.outputs[1] = story.outputs[1], story.outputs[0]


def invent(story: Story) -> None:
    story.outputs.append(Read(Place(0, 8, 0, -1), "a", b"17:0.0"))


def copy_what_is_not_there(story: Story) -> None:
    del story.inputs[0]


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lose, r"b'0\.2' was never copied"),
        (repeat, r"b'0\.0' was copied by piece 1 .* and again by piece 4"),
        (show_an_aborted, r"piece 0 .*aborted.*: 2 of its 2 copies can be seen"),
        (show_half, r"piece 2 .*unknown.*: 1 of its 2 copies are missing: \[b'0\.3'\]"),
        (swap, r"key a: the copy of b'0\.0' by piece 1 .* stands behind that of b'0\.1', sent later"),
        (invent, r"nobody made b'17:0\.0'"),
        (copy_what_is_not_there, r"b'0\.0' was copied by piece 1 .*, though it cannot be read"),
    ],
)
def test_each_broken_promise_is_told(damage: Callable[[Story], None], complaint: str) -> None:
    story = Story()
    damage(story)
    assert any(re.search(complaint, told) for told in story.judge()), story.judge()


def test_a_queue_keeps_no_order() -> None:
    story = Story()
    swap(story)
    assert story.copies.judge(story.history, story.inputs, story.outputs, is_ordered=False) == []


def test_what_is_settled_must_not_come_to_a_consumer_that_comes_later() -> None:
    story = Story()
    story.copies.settle(story.by_fate[Fate.COMMITTED])
    assert story.copies.missing(story.values) == {b"0.2", b"0.3"}
    story.copies.received(story.values[2], settled_before=1)
    story.copies.received(story.values[0], settled_before=0)
    assert story.copies.complaints == []
    story.copies.received(story.values[0], settled_before=1)
    assert len(story.copies.complaints) == 1
