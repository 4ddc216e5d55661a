"""The judge of watches can reject: real reports over kills are correct, and every omission or addition is found."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from storage.metadata.store import Check, Delete, Put
from tests.linearizability.harness import Report, run, within
from tests.linearizability.histories import Call, Seen
from tests.linearizability.subjects import embedded
from tests.linearizability.watch_rules import Writes, judge_key, judge_range
from tests.linearizability.watching import KeyReading, RangeReading, Step

Sitting = list[Step]

EDITS_MAX: Final = 8
"""How many places in a sitting are tried, evenly spread over it."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Run once for all tests of this module."""
    folder: Path = tmp_path_factory.mktemp("store")
    with embedded(folder) as subject:
        return trio.run(lambda: run(subject, seed=5, kills=4, calls=1_200))


@pytest.fixture(scope="module")
def writes(report: Report) -> Writes:
    return Writes(report.with_watches().calls, report.ranges, report.final.values())


def test_what_watches_told_is_true(report: Report, writes: Writes) -> None:
    """M13, M14, M15, M17: ordered, unique, complete and never back, for fast and slow readers, over four kills."""
    assert report.complaints == []
    assert report.kills.total() == 4
    # A process may die before everybody has opened a watch.
    assert max(len(reading.sittings) for reading in report.ranges) > 1
    for reading in report.ranges:
        assert sum(map(len, reading.sittings)) > 20
        final = within(report.final, reading)
        assert judge_range(writes, reading, final, folds=False) == []
        # What may fold need not.
        assert judge_range(writes, reading, final, folds=True) == []


def is_known(step: Step, writes: Writes) -> bool:
    """Return whether the judge knows that this step happened: nobody does of a deletion without an answer."""
    write = writes.by_revision.get(step.revision)
    return write is not None and (bool(step.records) or all(map(write.deletes_key, step.deleted)))


def a_step_is_lost(steps: Sitting, writes: Writes) -> Iterator[Sitting]:
    # The last one may never have come, if the process died.
    for number in range(1, len(steps) - 1):
        if is_known(steps[number], writes):
            yield steps[:number] + steps[number + 1 :]


def a_step_comes_twice(steps: Sitting, _writes: Writes) -> Iterator[Sitting]:
    for number in range(1, len(steps)):
        yield steps[: number + 1] + steps[number:]


def two_steps_change_places(steps: Sitting, _writes: Writes) -> Iterator[Sitting]:
    for number in range(1, len(steps) - 1):
        yield [*steps[:number], steps[number + 1], steps[number], *steps[number + 2 :]]


def a_step_is_cut_in_two(steps: Sitting, _writes: Writes) -> Iterator[Sitting]:
    for number, step in enumerate(steps):
        if number and len(step.records) > 1:
            first, rest = (step._replace(records=records) for records in (step.records[:1], step.records[1:]))
            yield [*steps[:number], first._replace(deleted=()), rest, *steps[number + 1 :]]


def half_a_step_is_lost(steps: Sitting, writes: Writes) -> Iterator[Sitting]:
    for number, step in enumerate(steps):
        if number and len(step.records) + len(step.deleted) > 1 and is_known(step, writes):
            half = step._replace(records=step.records[:-1]) if step.records else step._replace(deleted=step.deleted[1:])
            yield [*steps[:number], half, *steps[number + 1 :]]


def a_listing_lacks_a_record(steps: Sitting, writes: Writes) -> Iterator[Sitting]:
    records = steps[0].records if steps else ()
    for number, seen in enumerate(records):
        # A deletion without an answer may have taken effect.
        if not writes.may_be_absent(seen, steps[0].revision):
            yield [steps[0]._replace(records=records[:number] + records[number + 1 :]), *steps[1:]]


def a_record_nobody_wrote(steps: Sitting, _writes: Writes) -> Iterator[Sitting]:
    for number, step in enumerate(steps):
        if number and step.records:
            forged = step.records[0]._replace(value="forged")
            yield [*steps[:number], step._replace(records=(forged, *step.records[1:])), *steps[number + 1 :]]


MUTATIONS = (
    a_step_is_lost,
    a_step_comes_twice,
    two_steps_change_places,
    a_step_is_cut_in_two,
    half_a_step_is_lost,
    a_listing_lacks_a_record,
    a_record_nobody_wrote,
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_what_no_watch_may_tell_is_seen(
    report: Report, writes: Writes, mutation: Callable[[Sitting, Writes], Iterator[Sitting]]
) -> None:
    """M13, M14, M17: lost, repeated, reordered, torn or invented steps, anywhere."""
    tried = 0
    for reading in report.ranges:
        final = within(report.final, reading)
        for number, sitting in enumerate(reading.sittings):
            every = list(mutation(sitting, writes))
            for broken in every[:: -(-len(every) // EDITS_MAX) or 1]:
                sittings = [*reading.sittings[:number], broken, *reading.sittings[number + 1 :]]
                complaints = judge_range(writes, RangeReading(reading.start, reading.end, sittings), final, folds=False)
                assert complaints, broken
                tried += 1
    assert tried > 5


def test_a_watch_that_goes_back_after_a_resumption_is_seen(report: Report, writes: Writes) -> None:
    """M15: each listing is at least as new as everything reported before it."""
    tried = 0
    for reading in report.ranges:
        for number in range(1, len(reading.sittings)):
            swapped = [*reading.sittings]
            earlier, later = swapped[number - 1 : number + 1]
            if earlier and later and earlier[0].revision < later[-1].revision:
                swapped[number - 1 : number + 1] = later, earlier
                told = RangeReading(reading.start, reading.end, swapped)
                complaints = judge_range(writes, told, report.final, folds=False)
                assert any("went back" in complaint for complaint in complaints)
                tried += 1
    assert tried


def test_a_watch_that_stops_too_early_is_seen(report: Report, writes: Writes) -> None:
    """M14: a complete report includes the last change."""
    reading = report.ranges[0]
    steps = len(reading.sittings[-1])
    tried = 0
    for kept in range(steps - 1, 0, -(steps // EDITS_MAX + 1)):
        last = reading.sittings[-1][:kept]
        # What the rest put it may also have deleted.
        if shown_after(last) != report.final:
            told = RangeReading(reading.start, reading.end, [*reading.sittings[:-1], last])
            assert judge_range(writes, told, report.final, folds=True)
            tried += 1
    assert tried


def shown_after(steps: Sitting) -> dict[str, Seen]:
    """Return what a reader of these steps believes to be there."""
    state: dict[str, Seen] = {}
    for step in steps:
        state |= {seen.key: seen for seen in step.records}
        for key in step.deleted:
            state.pop(key, None)
    return state


def test_a_key_watch_may_leave_out_states_but_not_the_last(report: Report, writes: Writes) -> None:
    """M13: it merges states, never goes back, and ends with the final state."""
    told = {seen for reading in report.ranges for steps in reading.sittings for step in steps for seen in step.records}
    key = "/g0/a"
    states: list[Seen | None] = [*sorted((seen for seen in told if seen.key == key), key=lambda seen: seen.version)]
    assert len(states) > 3
    assert judge_key(writes, KeyReading(key, [states]), states[-1]) == []
    assert judge_key(writes, KeyReading(key, [states[:1], states[2:]]), states[-1]) == []
    assert judge_key(writes, KeyReading(key, [states[:-1]]), states[-1])
    assert judge_key(writes, KeyReading(key, [[states[1], states[0]]]), states[0])
    assert judge_key(writes, KeyReading(key, [states[1:], states[:1]]), states[0])
    assert judge_key(writes, KeyReading(key, [[states[0], states[0]]]), states[0])
    forged = Seen(key, "forged", 1)
    assert judge_key(writes, KeyReading(key, [[forged]]), forged)


def test_an_unanswered_deletion_may_have_the_revision_of_an_answer() -> None:
    """M14: a change set that changed nothing is answered with the revision of the change set before it."""
    put = Call(1, "/g", "commit", 1, 2, "ok", ops=(Put("/g/a", b"1"),), revision=1, keys=("/g/a",))
    deletion = Call(2, "/g", "commit", 3, ops=(Delete("/g/a"),))
    check = Call(1, "/g", "commit", 4, 5, "ok", ops=(Check("/g/b", 0),), revision=2, keys=(None,))
    reading = RangeReading("/g/", "/g/~", [[Step(0), Step(1, (Seen("/g/a", "1", 1),)), Step(2, (), ("/g/a",))]])
    assert judge_range(Writes([put, deletion, check], [reading], []), reading, {}, folds=False) == []
    told = judge_range(Writes([put, check], [reading], []), reading, {}, folds=False)
    assert told == ["watch of /g/ to /g/~: nobody deleted ['/g/a'] at revision 2"]
