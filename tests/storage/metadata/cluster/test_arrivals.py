"""Which of the writes that arrive are decided, and what their writers hear."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.cluster.arrivals import WINDOW, Arrivals, Unanswered, Verdict
from storage.metadata.cluster.fields import LinkError
from storage.metadata.outcomes import ContradictedOutcome, Made, Outcomes, Run, WriteId

LINK = 7


def _outcomes(*writes: tuple[int, int]) -> Outcomes:
    outcomes = Outcomes()
    for number, answered_below in writes:
        outcomes.note(WriteId(LINK, number, answered_below), Made(100 + number))
    return outcomes


def test_a_write_is_decided_once_and_its_repeats_get_its_answer() -> None:
    """M22: while it is being decided, and from its outcome on record, in this reign and in the next one."""
    outcomes = Outcomes()
    arrivals = Arrivals(outcomes)
    write = WriteId(LINK, 1, 1)
    assert arrivals.take(write) is Verdict.DECIDE
    assert arrivals.take(write) is Verdict.WAIT
    made = Made(30, (Run(5, 2),))
    outcomes.note(write, made)
    arrivals.decided(write)
    assert arrivals.take(write) == made
    assert Arrivals(outcomes).take(write) == made


def test_a_refused_write_is_decided_again() -> None:
    arrivals = Arrivals(Outcomes())
    write = WriteId(LINK, 1, 1)
    assert arrivals.take(write) is Verdict.DECIDE
    arrivals.decided(write)
    assert arrivals.take(write) is Verdict.DECIDE


def test_a_copy_of_a_refused_and_answered_write_is_dropped() -> None:
    """M22: although no record knows of it."""
    arrivals = Arrivals(Outcomes())
    for number in (1, 2):
        assert arrivals.take(WriteId(LINK, number, number)) is Verdict.DECIDE
        arrivals.decided(WriteId(LINK, number, number))
    assert arrivals.take(WriteId(LINK, 1, 1)) is Verdict.DROP


def test_a_copy_of_a_forgotten_write_is_dropped_in_the_next_reign() -> None:
    """M22: by what the log says of its writer's answers."""
    assert Arrivals(_outcomes((1, 1), (2, 2))).take(WriteId(LINK, 1, 1)) is Verdict.DROP


def test_writers_do_not_meet() -> None:
    outcomes = _outcomes((1, 1), (2, 2))
    arrivals = Arrivals(outcomes)
    assert arrivals.take(WriteId(8, 1, 1)) is Verdict.DECIDE
    assert arrivals.take(WriteId(LINK, 2, 2)) == Made(102)


@pytest.mark.parametrize(("number", "below"), [(0, 0), (1, 0), (1, 2), (WINDOW + 1, 1), (2**63, 1)])
def test_numbers_outside_of_the_window_end_the_link(number: int, below: int) -> None:
    """E8: no writer counts like that."""
    with pytest.raises(LinkError, match=f"write {number} cannot follow"):
        Arrivals(Outcomes()).take(WriteId(LINK, number, below))


def test_the_last_number_of_the_window_is_taken() -> None:
    assert Arrivals(Outcomes()).take(WriteId(LINK, WINDOW, 1)) is Verdict.DECIDE


def test_outcomes_are_forgotten_once_their_writer_has_them() -> None:
    """E16: however many writes there were, also if they were decided out of order."""
    outcomes = Outcomes()
    for number in range(1, 10_001, 2):
        for shuffled in (number + 1, number):
            outcomes.note(WriteId(LINK, shuffled, max(1, number - 10)), Made(shuffled))
    assert [write.number for write, _made in outcomes.each()] == [
        *(shuffled for number in range(9_989, 10_000, 2) for shuffled in (number + 1, number))
    ]
    assert outcomes.answered_below(LINK) == 9_989


def test_the_outcome_at_the_lowest_unanswered_number_is_kept() -> None:
    """M22: whether its writer has passed few numbers or many."""
    for passed in (2, 2_000):
        outcomes = _outcomes((1, 1), (passed, 1), (passed + 1, passed))
        assert [write.number for write, _made in outcomes.each()] == [passed, passed + 1]


def test_a_large_step_of_the_answers_is_a_small_step_of_work() -> None:
    """E7: a number is not a count of steps."""
    outcomes = _outcomes((1, 1), (2, 1), (2**62, 2**62))
    assert list(outcomes.each()) == [(WriteId(LINK, 2**62, 2**62), Made(100 + 2**62))]


def test_a_late_record_takes_nothing_back() -> None:
    outcomes = _outcomes((4, 3), (3, 1), (5, 2))
    assert outcomes.answered_below(LINK) == 3
    assert outcomes.find(WriteId(LINK, 3, 1)) == Made(103)
    with pytest.raises(ContradictedOutcome, match="had its answer"):
        outcomes.note(WriteId(LINK, 2, 1), Made(9))
    with pytest.raises(ContradictedOutcome, match="made twice"):
        outcomes.note(WriteId(LINK, 4, 1), Made(9))


def test_the_end_of_a_session_forgets_its_writes() -> None:
    """E16, M19: also those that are being decided."""
    outcomes = _outcomes((1, 1))
    arrivals = Arrivals(outcomes)
    write = WriteId(LINK, 2, 1)
    assert arrivals.take(write) is Verdict.DECIDE
    outcomes.session_ended(LINK)
    arrivals.session_ended(LINK)
    arrivals.decided(write)
    outcomes.session_ended(LINK)
    assert list(outcomes.each()) == []
    assert outcomes.answered_below(LINK) == 0
    assert outcomes.find(WriteId(LINK, 1, 1)) is None


def test_a_snapshot_of_the_outcomes_is_read_back() -> None:
    """R27: it gives the same state, and the same order."""
    outcomes = _outcomes((1, 1), (4, 2), (3, 2), (2, 2))
    outcomes.note(WriteId(9, 1, 1), Made(200))
    loaded = Outcomes()
    for write, made in outcomes.each():
        loaded.note(write, made)
    assert list(loaded.each()) == list(outcomes.each())
    assert [loaded.answered_below(session) for session in (LINK, 9)] == [2, 1]


def test_a_writer_waits_for_its_oldest_write_at_the_windows_end() -> None:
    """E8: so its outcomes are bounded, also if only one write takes long."""
    unanswered = Unanswered[str]()

    def has_room() -> bool:
        return unanswered.has_room

    for number in range(1, WINDOW + 1):
        assert has_room()
        assert unanswered.add(f"write {number}") == number
    assert not has_room()
    for number in range(2, WINDOW + 1):
        assert unanswered.answered(number) == f"write {number}"
    assert not has_room()
    assert unanswered.answered(1) == "write 1"
    assert unanswered.answered(1) is None
    assert has_room()
    assert unanswered.answered_below == WINDOW + 1


@dataclass
class Cluster:
    """A writer, a controller and the link between them, which delivers in order and may end at any moment."""

    unanswered: Unanswered[None] = field(default_factory=Unanswered)
    heard: dict[int, Made | None] = field(default_factory=dict)
    """The answers of the writer: what was made, None for a refusal."""
    log: list[tuple[WriteId, Made]] = field(default_factory=list)
    outcomes: Outcomes = field(default_factory=Outcomes)
    to_controller: deque[WriteId] = field(default_factory=deque)
    to_writer: deque[tuple[int, Made | None]] = field(default_factory=deque)
    deciding: list[WriteId] = field(default_factory=list)
    added: int = 0

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(self.outcomes)

    def write(self, _choice: int) -> None:
        if self.unanswered.has_room:
            self.added = self.unanswered.add(None)
            self._send(self.added)

    def deliver(self, _choice: int) -> None:
        if self.to_controller:
            write = self.to_controller.popleft()
            taken = self.arrivals.take(write)
            if taken is Verdict.DECIDE:
                self.deciding.append(write)
            elif isinstance(taken, Made):
                self.to_writer.append((write.number, taken))

    def commit(self, choice: int) -> None:
        self._decide(choice, is_refused=False)

    def refuse(self, choice: int) -> None:
        self._decide(choice, is_refused=True)

    def answer(self, _choice: int) -> None:
        if self.to_writer:
            number, made = self.to_writer.popleft()
            self.unanswered.answered(number)
            assert self.heard.setdefault(number, made) == made, "one write, one answer"

    def cut(self, _choice: int) -> None:
        self.to_controller.clear()
        self.to_writer.clear()
        for number, _write in self.unanswered.again():
            self._send(number)

    def fail_over(self, choice: int) -> None:
        """The next controller knows what is in the log. Decisions that were not written are lost."""
        self.deciding.clear()
        self.outcomes = Outcomes()
        for write, made in self.log:
            self.outcomes.note(write, made)
        self.arrivals = Arrivals(self.outcomes)
        self.cut(choice)

    def settle(self) -> None:
        """A link that works, until everything is answered."""
        self.cut(0)
        while self.to_controller or self.deciding or self.to_writer:
            for step in (self.deliver, self.commit, self.answer):
                step(0)

    def _send(self, number: int) -> None:
        self.to_controller.append(WriteId(LINK, number, self.unanswered.answered_below))

    def _decide(self, choice: int, *, is_refused: bool) -> None:
        if self.deciding:
            write = self.deciding.pop(choice % len(self.deciding))
            made = None
            if not is_refused:
                made = Made(len(self.log) + 1)
                self.log.append((write, made))
                self.outcomes.note(write, made)
            self.arrivals.decided(write)
            self.to_writer.append((write.number, made))


STEPS = ("write", "deliver", "commit", "refuse", "answer", "cut", "fail_over")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), max_size=80))
def test_every_write_is_decided_once_whatever_is_lost_or_repeated(steps: list[tuple[str, int]]) -> None:
    """M22: through cut links and fail-overs. Its writer hears what the log says."""
    cluster = Cluster()
    for step, choice in steps:
        getattr(cluster, step)(choice)
        kept = [write.number for write, _made in cluster.outcomes.each()]
        assert len(set(kept)) == len(kept) <= WINDOW
    cluster.settle()
    made = {write.number: made for write, made in cluster.log}
    assert len(made) == len(cluster.log), "nothing is made twice"
    assert cluster.heard == {number: made.get(number) for number in range(1, cluster.added + 1)}
    assert cluster.unanswered.answered_below == cluster.added + 1
