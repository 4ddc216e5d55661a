"""The judges can reject: a recorded history is legal, and every changed history is not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import trio

from storage.metadata.store import Delete, IndexEntry, Put
from tests.linearizability import mutations
from tests.linearizability.harness import Report, run
from tests.linearizability.histories import Call, History, Seen, judge
from tests.linearizability.subjects import MemorySubject, embedded

EDITS_MAX: Final = 3
"""How many places of a mutation are tried, evenly spread over the history."""


@pytest.fixture(scope="module", params=["memory", "embedded"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    """Run once for all tests of this module."""
    if request.param == "memory":
        yield trio.run(lambda: run(MemorySubject(), seed=11, calls=2_000))
    else:
        # A kill leaves calls whose effect nobody saw. The time that a judge needs to say no doubles with each of them.
        with embedded(tmp_path_factory.mktemp("store")) as subject:
            yield trio.run(lambda: run(subject, seed=11, kills=2, calls=1_500))


def lines(calls: list[Call]) -> bytes:
    return History(calls).lines()


def test_what_a_store_answered_is_legal(report: Report) -> None:
    """M1, M2, M3, M5, M8, M9, M14: compare-and-set, sequences and index queries, of concurrent clients."""
    assert report.complaints == []
    assert report.verdict == "legal"
    assert {call.kind for call in report.history.calls} == {"get", "scan", "query", "commit"}
    assert judge(lines(mutations.spread(report.history.calls))).verdict == "legal"


@pytest.mark.parametrize("mutation", mutations.EVERY, ids=lambda mutation: mutation.__name__)
def test_a_history_of_a_broken_store_is_illegal(report: Report, mutation: mutations.Mutation) -> None:
    """M1, M2, M3, M5, M8, M9, M23: the check fails where it must."""
    calls = mutations.spread(report.history.calls)
    every = list(mutation(calls))
    assert every, "the history has no place for it"
    for edits in every[:: -(-len(every) // EDITS_MAX)]:
        verdict = judge(lines(mutations.edited(calls, edits)))
        assert verdict.verdict == "illegal", edits
        assert verdict.complaints


def put(key: str, value: str, *, expected: int | None = None) -> Put:
    return Put(key, value.encode(), expected)


def written(client: int, invoked: int, op: Put, *, returned: int | None = None, revision: int = 0) -> Call:
    """Return a commit of one put: answered or not."""
    call = Call(client, "/g", "commit", invoked, ops=(op,))
    if returned is None:
        return call
    return replace(call, returned=returned, outcome="ok", revision=revision, keys=(op.key,))


def got(client: int, invoked: int, returned: int, *records: Seen, key: str = "/g/a") -> Call:
    return Call(client, "/g", "get", invoked, returned, "ok", {"key": key}, records=records)


FIRST = written(1, 1, put("/g/a", "1"), returned=2, revision=5)
UNANSWERED = written(1, 3, put("/g/a", "2"))
OLD, NEW = Seen("/g/a", "1", 5), Seen("/g/a", "2", 6)


@pytest.mark.parametrize(
    ("reads", "verdict"),
    [
        ([got(2, 4, 5, OLD), got(2, 6, 7, OLD)], "legal"),
        ([got(2, 4, 5, NEW), got(2, 6, 7, NEW)], "legal"),
        ([got(2, 4, 5, OLD), got(2, 8, 9, NEW)], "legal"),
        ([got(2, 4, 5, NEW), got(2, 6, 7, OLD)], "illegal"),
        ([got(2, 4, 5, NEW), got(2, 6, 7, NEW._replace(version=7))], "illegal"),
        ([got(2, 4, 5)], "illegal"),
        # A refusal names a version that only the unanswered put can have written.
        (
            [
                replace(
                    written(2, 4, put("/g/a", "3", expected=5)), returned=5, outcome="conflict", conflict=("/g/a", 5, 6)
                )
            ],
            "legal",
        ),
        # It does so too when a deletion of nothing was answered with the same revision.
        (
            [
                Call(3, "/g", "commit", 4, 5, "ok", ops=(Delete("/g/z"),), revision=6, keys=(None,)),
                replace(
                    written(2, 6, put("/g/a", "3", expected=5)), returned=7, outcome="conflict", conflict=("/g/a", 5, 6)
                ),
            ],
            "legal",
        ),
        (
            [
                replace(
                    written(2, 4, put("/g/b", "3", expected=5)), returned=5, outcome="conflict", conflict=("/g/b", 5, 6)
                )
            ],
            "illegal",
        ),
    ],
)
def test_an_unanswered_write_takes_effect_once_or_never(reads: list[Call], verdict: str) -> None:
    """M22, M23: it may take effect at any later time, never half, and is not undone."""
    assert judge(lines([FIRST, UNANSWERED, *reads])).verdict == verdict


def test_an_unanswered_write_shows_by_what_it_replaced() -> None:
    """M14, M22: an index has lost a record, although nobody ever saw the new one."""
    indexed = replace(FIRST, ops=(replace(put("/g/a", "1"), indexes=(IndexEntry("by", "x"),)),))
    query = Call(2, "/g", "query", 4, 5, "ok", {"index": "by", "start": "x", "end": "y"})
    assert judge(lines([indexed, UNANSWERED, query])).verdict == "legal"
    assert judge(lines([indexed, query])).verdict == "illegal"


def test_an_unanswered_write_does_not_take_effect_before_it_was_made() -> None:
    """M22: unknown does not mean arbitrary."""
    assert judge(lines([FIRST, replace(UNANSWERED, invoked=8), got(2, 4, 5, NEW)])).verdict == "illegal"


def test_revisions_rise_over_groups() -> None:
    """M3: this includes unrelated keys."""
    other = written(2, 3, put("/h/a", "9"), returned=4, revision=6)
    assert judge(lines([FIRST, replace(other, group="/h")])).verdict == "legal"
    assert judge(lines([FIRST, replace(other, group="/h", revision=4)])).verdict == "illegal"


def test_change_sets_may_share_a_revision_only_where_that_was_agreed() -> None:
    """M3: they must touch different keys, so that no key ever has one version twice."""
    both = [FIRST, written(2, 1, put("/g/b", "2"), returned=3, revision=5)]
    assert judge(lines(both)).verdict == "illegal"
    assert judge(lines(both), shares_revisions=True).verdict == "legal"
    same_key = [FIRST, written(2, 1, put("/g/a", "2"), returned=3, revision=5)]
    assert judge(lines(same_key), shares_revisions=True).verdict == "illegal"
    later = [FIRST, written(2, 3, put("/g/b", "2"), returned=4, revision=5)]
    assert judge(lines(later), shares_revisions=True).verdict == "illegal"


def test_a_line_that_is_not_understood_is_no_history(tmp_path: Path) -> None:
    """Otherwise it would count as legal."""
    with pytest.raises(Exception, match="exit status 2"):
        judge(b'{"client": 1, "call": "gte", "outcome": "ok"}')
    path = tmp_path / "history"
    History([FIRST]).write(path)
    assert judge(path.read_bytes()).verdict == "legal"
