"""Deciding in groups: a proposal on top of undurable ones is decided as if they were durable."""

import gc
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.metadata import delta as delta_module
from storage.metadata.delta import Delta, measure, measure_in_steps
from storage.metadata.image import Image
from storage.metadata.steps import Steps
from storage.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    InvalidOperation,
    MetadataError,
    Op,
    Put,
    PutSequential,
    Session,
)
from tests.support.examples import examples


@dataclass
class FakeSession(Session):
    number: int

    @property
    def id(self) -> int:
        return self.number

    @property
    def has_ended(self) -> bool:
        return False

    async def close(self) -> None:
        raise NotImplementedError

    async def wait_lost(self) -> None:
        raise NotImplementedError


RECORDS = 20_000

KEYS = st.sampled_from(["/a", "/b", "/c", "/d"])
SESSIONS = st.none() | st.integers(1, 6).map(FakeSession)
EXPECTED = st.none() | st.integers(ABSENT, 8)
OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(Put, KEYS, st.just(b""), EXPECTED, st.sampled_from([(), (IndexEntry("i", "x"),)]), session=SESSIONS),
    st.builds(PutSequential, st.just("/b"), st.just(b""), st.just("p")),
    st.builds(Delete, KEYS, EXPECTED),
    st.builds(DeleteRange, KEYS, KEYS),
    st.builds(Check, KEYS, st.integers(ABSENT, 8)),
)
Step = tuple[str, object]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("commit"), st.lists(OPS, min_size=1, max_size=2, unique_by=str)),
    st.tuples(st.just("open"), st.just(5000)),
    st.tuples(st.just("end"), st.lists(st.integers(1, 6), max_size=2)),
)


def decide(delta: Delta, step: Step) -> object:
    """Return a step's answer, with refusals as text."""
    kind, argument = step
    calls: dict[str, Callable[[object], object]] = {
        "commit": delta.commit,  # type: ignore[dict-item]
        "open": delta.open_session,  # type: ignore[dict-item]
        "end": delta.end_sessions,  # type: ignore[dict-item]
    }
    try:
        return calls[kind](argument)
    except MetadataError as refusal:
        return str(refusal)


def apply(image: Image, delta: Delta) -> None:
    for change_set in delta.change_sets:
        image.apply(change_set)


def state(image: Image) -> object:
    everything = ("", "\U0010ffff", None)
    records = image.scan(*everything)
    return image.revision, image.sequence, image.sessions, records, image.query("i", *everything)


@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=12), st.integers(0, 12))
def test_a_group_is_its_steps_one_by_one(steps: list[Step], already_durable: int) -> None:
    """R11, D13: the answers and the image are the same with any division into groups."""
    grouped, stepwise = Image(), Image()
    for step in steps[:already_durable]:
        for image in (grouped, stepwise):
            delta = Delta(image)
            decide(delta, step)
            apply(image, delta)
    group = Delta(grouped)
    before = state(grouped)
    answers = [decide(group, step) for step in steps[already_durable:]]
    assert state(grouped) == before
    expected = []
    for step in steps[already_durable:]:
        delta = Delta(stepwise)
        expected.append(decide(delta, step))
        apply(stepwise, delta)
    assert answers == expected
    assert group.revision == stepwise.revision
    apply(grouped, group)
    assert state(grouped) == state(stepwise)


def test_a_range_that_was_just_emptied_is_empty() -> None:
    """M24: deleting it again changes nothing and takes no revision, in one group as in two."""
    image = Image()
    first = Delta(image)
    first.commit([Put("/a", b"")])
    apply(image, first)
    group = Delta(image)
    assert group.commit([Delete("/a"), Put("/b", b"")]).revision == 2
    assert group.commit([DeleteRange("/a", "/b")]).revision == 2
    assert group.commit([DeleteRange("/a", "/c")]).revision == 3
    assert group.commit([DeleteRange("/a", "/c")]).revision == 3


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_takes_long_is_done_in_steps(monkeypatch: pytest.MonkeyPatch, is_stored: bool) -> None:
    """E7: by number of operations, and by the size of one operation."""
    monkeypatch.setattr(delta_module, "KEYS_AT_ONCE", 4)
    image = Image()
    first = Delta(image)
    session = FakeSession(first.open_session(5000))
    puts = [Put(f"/a/{number}", b"") for number in range(20)]
    held = [Put(f"/e/{number}", b"", session=session) for number in range(20)]
    assert _steps_of(measure_in_steps(puts)) >= 10
    assert _steps_of(first.commit_in_steps(puts)) == 10
    first.commit(held)
    delta = first
    if is_stored:
        apply(image, first)
        delta = Delta(image)
    assert _steps_of(delta.commit_in_steps([DeleteRange("/a/", "/a0")])) == 5
    assert _steps_of(delta.end_sessions_in_steps([session.id])) == 5
    assert [delta.get(put.key) for put in (*puts, *held)] == [None] * 40


def _steps_of(work: Steps[object]) -> int:
    return sum(1 for _ in work)


def test_what_a_range_deletion_covers_is_found_among_many() -> None:
    """M24: ranges may overlap or touch in any way; an empty one covers nothing."""
    ranges = [DeleteRange(f"/{letter}", f"/{letter}5") for letter in "hdbf"]
    ranges += [DeleteRange("/d3", "/d8"), DeleteRange("/x", "/a"), DeleteRange("/b5", "/b7")]
    for free in ("/a", "/b7", "/c", "/d8", "/e", "/h5", "/x"):
        measure([*ranges, Put(free, b""), PutSequential(f"{free}~", b"", "p")])
    for covered in ("/b", "/b6", "/d7", "/h4~"):
        with pytest.raises(InvalidOperation, match="lies in the range"):
            measure([*ranges, Put(covered, b"")])
        with pytest.raises(InvalidOperation, match="lies in the range"):
            measure([*ranges, PutSequential(covered, b"", "p")])


def test_a_dropped_delta_leaves_nothing() -> None:
    """R15: values, versions, indexes, counters and sessions are as before."""
    image = Image()
    first = Delta(image)
    first.open_session(5000)
    first.commit(
        [Put("/a", b"", indexes=(IndexEntry("i", "x"),), session=FakeSession(1)), PutSequential("/s", b"", "p")]
    )
    apply(image, first)
    before = state(image)
    dropped = Delta(image)
    dropped.commit([DeleteRange("/", "0"), PutSequential("/t", b"", "p")])
    dropped.open_session(5000)
    dropped.end_sessions([1])
    with pytest.raises(Conflict):
        dropped.commit([Put("/a", b"", 1)])
    assert state(image) == before
    again = Delta(image)
    assert again.revision == 2
    assert again.commit([PutSequential("/t", b"", "p")]).keys == ("/t-00000000000000000002",)


def test_a_record_keeps_no_more_memory_than_its_value_needs() -> None:
    """E16: orjson keeps some kilobytes with each value; the image must not keep them with the record."""
    image = Image()
    before = _resident_bytes()
    for number in range(RECORDS):
        delta = Delta(image)
        delta.commit([Put(f"/txn/id/{number}", orjson.dumps({"state": "OPEN", "number": number}))])
        image.apply(delta.change_sets[0])
    assert (_resident_bytes() - before) / RECORDS < 2048


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
