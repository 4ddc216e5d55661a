"""The history that is written from the lines of the Java program."""

import pytest

from tests.support.chaos.java import Steps
from tests.support.history import Fate

STORY = """\
beginning 0
begun 0 0
send 0 a
beginning 1
begun 1 1
sent 0
send 1 b
not-sent 1 TimeoutException
abort 1
commit 0
committed 0
aborted 1
beginning 0
begun 0 2
send 2 a
sent 2
commit 2
not-ended 2 TimeoutException: later
beginning 1
not-begun 1 TimeoutException
got a 0.0.
"""


def heard(story: str) -> Steps:
    steps = Steps()
    for second, line in enumerate(story.splitlines()):
        steps.hear(line, float(second))
    return steps


def test_each_line_is_in_the_history() -> None:
    steps = heard(STORY)
    assert [record.fate for record in steps.history.transactions] == [Fate.COMMITTED, Fate.ABORTED, Fate.UNKNOWN]
    assert [(sent.key, sent.value()) for record in steps.history.transactions for sent in record.sent] == [
        ("a", b"0.0."),
        ("b", b"1.0."),
        ("a", b"2.0."),
    ]
    assert len(steps.refusals) == 3
    assert steps.history.judge_again(steps.reads) == []


def test_calls_are_timed_by_their_worker() -> None:
    steps = heard(STORY)
    assert steps.longest_seconds == {"begin": 1.0, "send": 3.0, "abort": 3.0, "commit": 1.0}
    assert steps.calls == {}
    assert set(heard("beginning 3\n").calls) == {3}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("got b 1.0.", "can be seen"),
        ("got a 0.1.", "nobody sent"),
    ],
)
def test_a_message_that_must_not_be_there_is_a_complaint(line: str, complaint: str) -> None:
    steps = heard(STORY + line)
    assert complaint in steps.history.judge_again(steps.reads)[0]


def test_a_message_that_is_missing_is_a_complaint() -> None:
    steps = heard(STORY.replace("got a 0.0.\n", ""))
    assert "are missing" in steps.history.judge_again(steps.reads)[0]
