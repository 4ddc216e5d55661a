"""The judge of large change sets can reject."""

import pytest

from tests.linearizability.samples import Attempt, Piece, Pieces, Sample, judge_samples, judge_steps, pieces

SIZE = 20
ATTEMPTS = [Attempt(1, 1, 2, 11), Attempt(2, 5, 8, 12), Attempt(3, 10)]


def whole(*numbers: int, size: int = SIZE) -> Pieces:
    return {number: Piece(size, frozenset({10 + number})) for number in numbers}


def sample(invoked: int, scanned: Pieces, found: Pieces | None = None) -> Sample:
    found = (
        {number: piece._replace(records=piece.records // 10) for number, piece in scanned.items()}
        if found is None
        else found
    )
    return Sample(invoked, invoked + 1, scanned, found)


@pytest.mark.parametrize(
    "samples",
    [
        [sample(0, {})],
        [sample(3, whole(1)), sample(6, whole(1)), sample(6, whole(1, 2)), sample(9, whole(1, 2))],
        [sample(11, whole(1, 2)), sample(13, whole(2, 3))],
        # A set may come between the scan and the query.
        [sample(6, whole(1), whole(1, 2, size=2))],
    ],
)
def test_whole_sets_are_right(samples: list[Sample]) -> None:
    """R14: before, between and after change sets."""
    assert judge_samples(samples, ATTEMPTS, SIZE) == []


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [
        ([sample(6, whole(1) | whole(2, size=19), whole(1, 2, size=2))], "19 of 20 records of set 2"),
        ([sample(6, whole(1, 2), whole(1, size=2) | whole(2, size=1))], "1 of 2 records of set 2"),
        ([sample(6, whole(1) | {2: Piece(SIZE, frozenset({12, 13}))})], "set 2 has the versions"),
        ([sample(6, whole(1) | {2: Piece(SIZE, frozenset({14}))})], "was written as revision 12"),
        ([sample(9, whole(1))], "set 2 was answered and is not there"),
        ([sample(11, whole(1, 2, 3))], "are there together"),
        ([sample(11, whole(3))], "set 2 is gone"),
        ([sample(3, whole(1, 2))], "nobody wrote it yet"),
        ([sample(11, whole(2, 3)), sample(13, whole(1, 2))], "set 3 was there before"),
    ],
)
def test_a_set_in_pieces_is_seen(samples: list[Sample], complaint: str) -> None:
    """R13, R14, M23: torn, lost, early, undone."""
    complaints = judge_samples(samples, ATTEMPTS, SIZE)
    assert any(complaint in told for told in complaints), complaints


def test_a_watch_tells_whole_sets() -> None:
    """R14: one change set is one step."""
    steps: list[tuple[Pieces, Pieces]] = [
        ({}, {}),
        (whole(1), {}),
        (whole(2), {}),
        (whole(3), whole(1)),
        (whole(5), whole(2, 3)),
    ]
    assert judge_steps(steps, SIZE) == []
    assert judge_steps([(whole(1, 2), {}), *steps[3:]], SIZE) == []


def test_a_slow_reader_is_told_of_several_sets_at_once_but_of_no_part() -> None:
    """M17: a difference is as complete as its change sets."""
    steps: list[tuple[Pieces, Pieces]] = [(whole(1), {}), (whole(4, 5), whole(1)), (whole(7), whole(4, 5))]
    assert judge_steps(steps, SIZE, folds=True) == []
    assert judge_steps(steps, SIZE)
    assert judge_steps([(whole(1), {}), (whole(4) | whole(5, size=9), whole(1))], SIZE, folds=True)
    assert judge_steps([(whole(1), {}), (whole(3, 4, 5), whole(1))], SIZE, folds=True)
    assert judge_steps([(whole(1), {}), ({2: Piece(SIZE, frozenset({12, 13}))}, {})], SIZE, folds=True)


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ((whole(3, size=19), whole(1)), "of 20 records"),
        ((whole(3), whole(1, size=3)), "of 20 records"),
        ((whole(3), {}), "deletes the sets"),
        ((whole(3), whole(1, 2)), "deletes the sets"),
        ((whole(3, 4), whole(1, 2)), "one change set writes one"),
        (({}, whole(1)), "one change set writes one"),
    ],
)
def test_a_watch_that_tells_pieces_is_seen(step: tuple[Pieces, Pieces], complaint: str) -> None:
    """R14: half a set, or two at once."""
    complaints = judge_steps([(whole(1, 2), {}), step], SIZE)
    assert any(complaint in told for told in complaints), complaints


def test_records_are_counted_by_their_set() -> None:
    assert pieces([("/big/00000001/00000", 5), ("/big/00000001/00001", 6), ("/big/00000002/00000", 6)]) == {
        1: Piece(2, frozenset({5, 6})),
        2: Piece(1, frozenset({6})),
    }
