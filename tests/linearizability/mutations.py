"""Changes a legal history as a broken store would have done.

Each mutation finds all places where it can be made and where no legal store could have answered so. It yields the
changed
calls. A judge that accepts one of them is useless.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from storage.metadata.store import Delete, DeleteRange, Put, PutSequential
from tests.linearizability.histories import Call, Seen, text_of

Edits = dict[int, Call]
"""What to put in the place of which call."""
Mutation = Callable[[Sequence[Call]], Iterator[Edits]]


def spread(calls: Sequence[Call]) -> list[Call]:
    """Return the same history with every revision doubled: it stays legal, with room between two revisions."""
    spread_calls = []
    for call in calls:
        conflict = call.conflict and (call.conflict[0], 2 * call.conflict[1], 2 * call.conflict[2])
        records = tuple(seen._replace(version=2 * seen.version) for seen in call.records)
        ops = tuple(
            op
            if isinstance(op, PutSequential | DeleteRange) or op.expected is None
            else replace(op, expected=2 * op.expected)
            for op in call.ops
        )
        spread_calls.append(replace(call, conflict=conflict, records=records, ops=ops, revision=2 * call.revision))
    return spread_calls


def a_read_is_stale(calls: Sequence[Call]) -> Iterator[Edits]:
    """A get returns what was overwritten before it began."""
    written = _written(calls)
    shown = _first_shown(calls)
    for number, call in enumerate(calls):
        if call.kind == "get" and call.records and shown[call.records[0].version] < call.invoked:
            seen = call.records[0]
            older = [other for other in written[seen.key] if other.version < seen.version]
            if older:
                yield {number: replace(call, records=(older[-1],))}


def a_write_is_lost(calls: Sequence[Call]) -> Iterator[Edits]:
    """A get finds nothing where a record was put and never deleted."""
    shown = _first_shown(calls)
    put_at = {call.revision: call.invoked for call in calls if call.outcome == "ok"}
    for number, call in enumerate(calls):
        if call.kind == "get" and call.records and shown[call.records[0].version] < call.invoked:
            seen = call.records[0]
            since = put_at.get(seen.version, 0)
            if not any(_deletes(other, seen.key) and (other.returned or since) >= since for other in calls):
                yield {number: replace(call, records=())}


def a_sequence_number_is_given_twice(calls: Sequence[Call]) -> Iterator[Edits]:
    """Two sequential puts get the same key."""
    before: dict[str, str] = {}
    for number, call in enumerate(calls):
        if call.kind != "commit" or call.outcome != "ok":
            continue
        for place, op in enumerate(call.ops):
            if not isinstance(op, PutSequential):
                continue
            mine = call.keys[place]
            assert mine is not None
            if op.prefix in before:
                keys = (*call.keys[:place], before[op.prefix], *call.keys[place + 1 :])
                edits = {number: replace(call, keys=keys)}
                # Who read the record found it under that key, as with a store that confuses numbers it would.
                for other_number, other in enumerate(calls):
                    if any(seen.key == mine for seen in other.records):
                        records = [
                            seen._replace(key=before[op.prefix]) if seen.key == mine else seen for seen in other.records
                        ]
                        edits[other_number] = replace(other, records=tuple(records))
                yield edits
            before[op.prefix] = mine


def a_sequence_goes_back(calls: Sequence[Call]) -> Iterator[Edits]:
    """A sequential put gets a number below one that was assigned before, whose record nobody saw."""
    given: dict[str, tuple[str, int]] = {}
    for number, call in enumerate(calls):
        if call.kind != "commit" or call.outcome != "ok" or len(call.ops) != 1:
            continue
        op = call.ops[0]
        if isinstance(op, PutSequential):
            mine = call.keys[0]
            assert mine is not None and call.returned is not None  # noqa: PT018
            earlier = given.get(op.prefix)
            if earlier is not None and earlier[1] < call.invoked and not any(_shows(other, mine) for other in calls):
                yield {number: replace(call, keys=(f"{op.prefix}-{int(earlier[0][-20:]) - 1:020}",))}
            given[op.prefix] = mine, call.returned


def both_win(calls: Sequence[Call]) -> Iterator[Edits]:
    """The loser of two compare-and-sets from one version is told that it won. The history must be spread."""
    winners = {
        (op.key, op.expected): call.revision
        for call in calls
        if call.outcome == "ok"
        for op in call.ops
        if isinstance(op, Put) and op.expected is not None
    }
    for number, call in enumerate(calls):
        if call.outcome == "conflict" and len(call.ops) == 1 and isinstance(op := call.ops[0], Put):
            assert op.expected is not None
            won = winners.get((op.key, op.expected))
            # To have failed on ABSENT needs no competitor.
            if won is not None and op.expected:
                edited = replace(call, outcome="ok", conflict=None, keys=(op.key,), revision=won + 1)
                yield {number: edited}


def an_index_hit_is_missing(calls: Sequence[Call]) -> Iterator[Edits]:
    """An index query omits a record that existed before and after it."""
    shown = _first_shown(calls)
    last_seen = {seen: call.invoked for call in calls for seen in _bare(call)}
    for number, call in enumerate(calls):
        if call.kind != "query" or "limit" in call.asked:
            continue
        assert call.returned is not None or call.outcome == "unknown"
        for place, seen in enumerate(call.records):
            bare = seen._replace(index_key="")
            if shown[seen.version] < call.invoked and last_seen[bare] > (call.returned or 0):
                yield {number: replace(call, records=call.records[:place] + call.records[place + 1 :])}


def an_index_hit_is_stale(calls: Sequence[Call]) -> Iterator[Edits]:
    """An index query shows a record as it was before."""
    written = _written(calls)
    shown = _first_shown(calls)
    for number, call in enumerate(calls):
        if call.kind != "query":
            continue
        for place, seen in enumerate(call.records):
            older = [other for other in written[seen.key] if other.version < seen.version]
            if older and shown[seen.version] < call.invoked:
                stale = older[-1]._replace(index_key=seen.index_key)
                records = (*call.records[:place], stale, *call.records[place + 1 :])
                yield {number: replace(call, records=records)}


def a_change_set_is_half_applied(calls: Sequence[Call]) -> Iterator[Edits]:
    """A scan shows one record of a change set, and another as it was before it."""
    written = _written(calls)
    for number, call in enumerate(calls):
        if call.kind != "scan":
            continue
        versions = [seen.version for seen in call.records]
        for place, seen in enumerate(call.records):
            if versions.count(seen.version) < 2:
                continue
            older = [other for other in written[seen.key] if other.version < seen.version]
            yield {number: replace(call, records=(*call.records[:place], *older[-1:], *call.records[place + 1 :]))}


def a_version_is_given_twice(calls: Sequence[Call]) -> Iterator[Edits]:
    """A put gets a version that its key had before (which makes compare-and-set unsafe)."""
    written = _written(calls)
    for number, call in enumerate(calls):
        if call.outcome == "ok" and len(call.ops) == 1 and isinstance(op := call.ops[0], Put):
            older = [seen.version for seen in written[op.key] if seen.version < call.revision]
            if older:
                yield {number: replace(call, revision=older[-1])}


def a_refusal_lies(calls: Sequence[Call]) -> Iterator[Edits]:
    """A compare-and-set is refused for a version that its key never had."""
    written = _written(calls)
    every = {seen.version for records in written.values() for seen in records}
    for number, call in enumerate(calls):
        if call.conflict is not None and call.conflict[2]:
            key, expected, _actual = call.conflict
            foreign = every - {seen.version for seen in written[key]} - {expected}
            if foreign:
                yield {number: replace(call, conflict=(key, expected, min(foreign)))}


EVERY: Sequence[Mutation] = (
    a_read_is_stale,
    a_write_is_lost,
    a_sequence_number_is_given_twice,
    a_sequence_goes_back,
    both_win,
    an_index_hit_is_missing,
    an_index_hit_is_stale,
    a_change_set_is_half_applied,
    a_version_is_given_twice,
    a_refusal_lies,
)


def edited(calls: Sequence[Call], edits: Edits) -> list[Call]:
    """Return the history with an edit."""
    return [edits.get(number, call) for number, call in enumerate(calls)]


def _written(calls: Sequence[Call]) -> dict[str, list[Seen]]:
    """Return, by key, what answered puts wrote, oldest first."""
    written: dict[str, list[Seen]] = defaultdict(list)
    for call in calls:
        if call.kind == "commit" and call.outcome == "ok":
            for op in call.ops:
                if isinstance(op, Put):
                    written[op.key].append(Seen(op.key, text_of(op.value), call.revision))
    for records in written.values():
        records.sort(key=lambda seen: seen.version)
    return written


def _first_shown(calls: Sequence[Call]) -> dict[int, int]:
    """Return, by revision, when a client first learned of it."""
    shown: dict[int, int] = {}
    for call in calls:
        if call.returned is not None:
            told = [seen.version for seen in call.records]
            told += [call.revision] if call.kind == "commit" and call.outcome == "ok" else []
            for revision in told:
                shown[revision] = min(call.returned, shown.get(revision, call.returned))
    return shown


def _bare(call: Call) -> list[Seen]:
    return [seen._replace(index_key="") for seen in call.records]


def _shows(call: Call, key: str) -> bool:
    return any(seen.key == key for seen in call.records) or (call.conflict is not None and call.conflict[0] == key)


def _deletes(call: Call, key: str) -> bool:
    return call.outcome != "conflict" and any(
        (isinstance(op, Delete) and op.key == key) or (isinstance(op, DeleteRange) and op.start <= key < op.end)
        for op in call.ops
    )
