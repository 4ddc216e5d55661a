"""What the controller answers to a write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.cluster.answers import (
    MESSAGE_BYTES_MAX,
    Conflicted,
    Refusal,
    Refused,
    committed_in_steps,
    error_of,
    made_in_steps,
    refusal_of,
)
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.ops_codec import OPS_MAX
from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.outcomes import Made, Run
from storage.metadata.steps import KEYS_AT_ONCE, finished
from storage.metadata.store import (
    ChangeSetTooLarge,
    Check,
    Committed,
    Conflict,
    Delete,
    InvalidOperation,
    MetadataError,
    Op,
    Put,
    PutSequential,
    SessionLost,
    StoreFull,
    StoreUnavailable,
)


@given(
    st.sets(st.integers(1, 12)),
    st.lists(st.sampled_from("psdc"), max_size=12),
)
def test_a_writer_gets_its_result_back_from_the_revision_and_the_numbers(taken: set[int], kinds: list[str]) -> None:
    """M5: also where numbers were skipped, because keys with them existed."""
    delta = Delta(Image())
    delta.commit([Put(f"/queue-{number:020}", b"") for number in taken])
    each: dict[str, Op] = {
        "s": PutSequential("/queue", b"", "p"),
        "d": Delete("/gone"),
    }
    ops = [
        each.get(kind) or (Put(f"/{place}", b"") if kind == "p" else Check(f"/{place}", 0))
        for place, kind in enumerate(kinds)
    ]
    committed = delta.commit(ops)
    made = finished(made_in_steps(ops, committed))
    assert len(made.numbers) <= len(taken) + 1
    assert finished(committed_in_steps(ops, made)) == committed


def test_numbers_in_a_row_are_one_run() -> None:
    ops = [PutSequential("/a", b"", "p")] * 5
    keys = tuple(f"/a-{number:020}" for number in (3, 4, 5, 9, 10))
    assert finished(made_in_steps(ops, Committed(8, keys))) == Made(8, (Run(3, 3), Run(9, 2)))


@pytest.mark.parametrize(
    ("runs", "says"),
    [((), "too few"), ((Run(1, 1),), "too few"), ((Run(1, 3),), "too many"), ((Run(1, 2**32 - 1),), "many")],
)
def test_an_answer_to_another_change_set_ends_the_link(runs: tuple[Run, ...], says: str) -> None:
    with pytest.raises(LinkError, match=says):
        finished(committed_in_steps([PutSequential("/a", b"", "p")] * 2, Made(8, runs)))


def test_a_large_change_set_is_answered_in_steps() -> None:
    """E7: at the controller, and at the writer."""
    ops = [PutSequential("/a", b"", "p")] * OPS_MAX
    committed = Committed(8, tuple(f"/a-{number:020}" for number in range(1, OPS_MAX + 1)))
    assert sum(1 for _ in made_in_steps(ops, committed)) == OPS_MAX // KEYS_AT_ONCE
    assert sum(1 for _ in committed_in_steps(ops, Made(8, (Run(1, OPS_MAX),)))) == OPS_MAX // KEYS_AT_ONCE


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (Conflict("/é", 3, 4), Conflicted("/é", 3, 4)),
        (SessionLost("session 3 has ended"), Refused(Refusal.SESSION_LOST, "session 3 has ended")),
        (ChangeSetTooLarge("a record"), Refused(Refusal.TOO_LARGE, "a record")),
        (InvalidOperation("an empty key"), Refused(Refusal.INVALID, "an empty key")),
        (StoreFull("the disk is full"), Refused(Refusal.FULL, "the disk is full")),
    ],
)
def test_a_refusal_is_the_same_error_at_the_writer(error: MetadataError, refusal: Conflicted | Refused) -> None:
    assert refusal_of(error) == refusal
    again = error_of(refusal)
    assert type(again) is type(error)
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


def test_a_long_message_is_cut() -> None:
    """E8: an operation's text may be in it. No character is cut in two."""
    refused = refusal_of(InvalidOperation("x" + "é" * MESSAGE_BYTES_MAX))
    assert isinstance(refused, Refused)
    assert refused.message == "x" + "é" * (MESSAGE_BYTES_MAX // 2 - 1)


def test_an_unknown_outcome_is_no_answer() -> None:
    """M22: a writer must not take it for a refusal."""
    with pytest.raises(KeyError):
        refusal_of(StoreUnavailable("unknown"))
