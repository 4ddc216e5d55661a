"""Checks that watches report what was written: ordered, unique, whole, complete, and never back after a resumption.

Versions are revisions, so the writes of a history have one order, and a watch can be compared with it directly. The
revision of an unanswered change set is known as soon as anybody saw one of its values. The revision of one that only
deletes is never known. So any unanswered deletion may explain a deletion.

A range watch may merge its reports into one difference if its reader is slow. Where the harness keeps the readers
within
the bound (`folds=False`), each change set is a separate step.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage.metadata.store import Delete, DeleteRange, Put, PutSequential
from tests.linearizability.histories import Call, Seen, text_of
from tests.linearizability.watching import KeyReading, RangeReading, Step

COMPLAINTS_MAX: Final = 20
"""Of more contradictions, the first say enough."""


@dataclass(slots=True)
class _Write:
    """A change set that took effect with a known revision."""

    revision: int
    puts: dict[str, Seen] = field(default_factory=dict)
    deletes: tuple[Delete | DeleteRange, ...] = ()

    def deletes_key(self, key: str) -> bool:
        return _deletes(self.deletes, key)


class Writes:
    """What is known of a history's writes."""

    def __init__(self, calls: Iterable[Call], readings: Iterable[RangeReading], final: Iterable[Seen]) -> None:
        """Set up with calls that include the watches' own reports (`History.saw`)."""
        calls = list(calls)
        self._listed: dict[Seen, float] = dict.fromkeys(final, math.inf)
        """The highest revision at which a record was listed."""
        for reading in readings:
            for steps in reading.sittings:
                for seen in steps[0].records if steps else ():
                    self._listed[seen] = max(steps[0].revision, self._listed.get(seen, 0))
        versions = {seen.value: seen for call in calls for seen in call.records}
        self.by_revision: dict[int, _Write] = {}
        self._doubtful: list[tuple[Delete | DeleteRange, ...]] = []
        """What each change set deletes of which nobody knows whether it took effect."""
        self._touches: dict[str, list[tuple[int, Seen | None]]] = defaultdict(list)
        """By key, each write that may be known to concern it: its revision and what it left there."""
        for call in calls:
            if call.kind == "commit" and call.outcome != "conflict":
                self._add(call, versions)
        self.revisions = sorted(self.by_revision)
        self._touched: dict[int, list[str]] = defaultdict(list)
        """By revision, the keys of `_touches`."""
        self._index()

    def _add(self, call: Call, versions: dict[str, Seen]) -> None:
        deletes = tuple(op for op in call.ops if isinstance(op, Delete | DeleteRange))
        values = [text_of(op.value) if isinstance(op, Put | PutSequential) else "" for op in call.ops]
        revision = call.revision
        if call.outcome == "unknown":
            revision = next((versions[value].version for value in values if value in versions), 0)
        if not revision:
            if deletes:
                self._doubtful.append(deletes)
            return
        puts: dict[str, Seen] = {}
        for number, (op, value) in enumerate(zip(call.ops, values, strict=True)):
            key = op.key if isinstance(op, Put) else None
            if isinstance(op, PutSequential):
                known = versions.get(value)
                key = call.keys[number] if call.keys else None if known is None else known.key
            if key is not None:
                puts[key] = Seen(key, value, revision)
        # A change set that changed nothing carries the revision of another; what it deletes was absent then, too.
        write = self.by_revision.setdefault(revision, _Write(revision))
        write.puts |= puts
        write.deletes += deletes

    def _index(self) -> None:
        keys = {key for write in self.by_revision.values() for key in write.puts}
        for revision in self.revisions:
            write = self.by_revision[revision]
            for key, seen in write.puts.items():
                self._touches[key].append((revision, seen))
            for op in write.deletes:
                for key in [op.key] if isinstance(op, Delete) else [key for key in keys if op.start <= key < op.end]:
                    self._touches[key].append((revision, None))
                    self._touched[revision].append(key)
            self._touched[revision] += write.puts

    @property
    def keys_written(self) -> int:
        """Return how many keys all change sets together put or deleted."""
        return sum(map(len, self._touches.values()))

    def touched(self, after: int, upto: int) -> set[str]:
        """Return the keys that may have changed behind one revision, up to another one."""
        return {key for write in self.after(after, upto + 1) for key in self._touched[write.revision]}

    def after(self, revision: int, upto: int) -> Iterator[_Write]:
        """Return the writes with revisions above one and below another."""
        for known in self.revisions[bisect_right(self.revisions, revision) :]:
            if known >= upto:
                return
            yield self.by_revision[known]

    def last(self, key: str, revision: int) -> Seen | None:
        """Return what a key had at a revision, without deletions of unknown time."""
        touches = self._touches.get(key, [])
        number = bisect_right(touches, revision, key=lambda touch: touch[0])
        return touches[number - 1][1] if number else None

    def may_be_absent(self, seen: Seen, revision: int) -> bool:
        """Return whether an unanswered deletion may explain that a record is missing at a revision."""
        if self._listed.get(seen, 0) >= revision:
            return False
        return any(_deletes(deletes, seen.key) for deletes in self._doubtful)

    def may_be_one_deletion(self, keys: Iterable[str]) -> bool:
        """Return whether one unanswered change set may delete all these keys."""
        wanted = list(keys)
        return any(all(_deletes(deletes, key) for key in wanted) for deletes in self._doubtful)


def judge_range(writes: Writes, reading: RangeReading, final: dict[str, Seen], *, folds: bool) -> list[str]:
    """Return complaints about a range watch's reports; `final` is the range's final content."""
    complaints: list[str] = []
    last = 0
    state: dict[str, Seen] = {}
    for sitting in reading.sittings:
        for number, step in enumerate(sitting):
            before = state
            if number == 0:
                complaints += _back(reading, last, before, step)
                state = {seen.key: seen for seen in step.records}
                changed = {key for key, _seen in before.items() ^ state.items()}
                complaints += _untrue(writes, reading, last, step.revision, state, changed)
            else:
                complaints += _unordered(last, before, step)
                state = before | {seen.key: seen for seen in step.records}
                for key in step.deleted:
                    state.pop(key, None)
                if folds:
                    changed = {*step.deleted, *(seen.key for seen in step.records)}
                    complaints += _untrue(writes, reading, last, step.revision, state, changed)
                else:
                    complaints += _lost(writes, reading, last, step.revision, before)
                    complaints += _unlike(writes, reading, step, before)
            last = step.revision
    if state != final:
        complaints.append(f"the watch ended with {_difference(state, final)}")
    return [f"watch of {reading.start} to {reading.end}: {text}" for text in complaints[:COMPLAINTS_MAX]]


def judge_key(writes: Writes, reading: KeyReading, final: Seen | None) -> list[str]:
    """Return complaints about a key watch's reports. It may omit states, but not the last one."""
    complaints: list[str] = []
    version = 0
    state: Seen | None = None
    for sitting in reading.sittings:
        for number, seen in enumerate(sitting):
            if number and seen == state:
                complaints.append(f"{seen} was told twice")
            if seen is not None:
                if seen.version < version or (number and seen.version == version):
                    complaints.append(f"it went from version {version} to {seen.version}")
                version = max(version, seen.version)
                write = writes.by_revision.get(seen.version)
                if write is None or write.puts.get(seen.key) != seen:
                    complaints.append(f"nobody wrote {seen}")
            state = seen
    if state != final:
        complaints.append(f"it ended with {state}, and there is {final}")
    return [f"watch of {reading.key}: {text}" for text in complaints[:COMPLAINTS_MAX]]


def _back(reading: RangeReading, last: int, before: dict[str, Seen], step: Step) -> Iterator[str]:
    """M15: a listing after a resumption is not older than earlier reports."""
    if step.deleted:
        yield f"a listing deletes {step.deleted}"
    if step.revision < last:
        yield f"it went back from revision {last} to {step.revision}"
    for seen in step.records:
        earlier = before.get(seen.key)
        if earlier is not None and earlier.version > seen.version:
            yield f"{seen.key} went back from {earlier} to {seen}"


def _untrue(
    writes: Writes, reading: RangeReading, last: int, revision: int, state: dict[str, Seen], changed: set[str]
) -> Iterator[str]:
    """M14: its content is that of the range at that revision.

    At the revision `last` that was checked before. So only keys count that were written since, or that this step has
    `changed`.
    """
    for key in sorted(changed | writes.touched(last, revision)):
        true, seen = writes.last(key, revision), state.get(key)
        # A deletion at a known revision may have changed nothing, but what it says is absent is absent.
        if seen is not None and true != seen:
            yield f"at revision {revision} it shows {seen}, and there was {true}"
        if seen is not None or true is None or not reading.start <= key < reading.end:
            continue
        if not writes.may_be_absent(true, revision):
            yield f"at revision {revision} it lacks {true}"


def _unordered(last: int, before: dict[str, Seen], step: Step) -> Iterator[str]:
    """Check that the steps are ordered and unique."""
    if step.revision <= last:
        yield f"revision {step.revision} was told after {last}"
    if not step.records and not step.deleted:
        yield f"revision {step.revision} tells nothing"
    for seen in step.records:
        earlier = before.get(seen.key)
        if earlier is not None and earlier.version >= seen.version:
            yield f"{seen} was told after {earlier}"
        if seen.version > step.revision:
            yield f"{seen} was told at revision {step.revision}"
    for key in step.deleted:
        if key not in before:
            yield f"{key} was deleted at revision {step.revision}, and was not there"


def _lost(writes: Writes, reading: RangeReading, last: int, revision: int, before: dict[str, Seen]) -> Iterator[str]:
    """M14: between two steps nothing happened in the range."""
    for write in writes.after(last, revision):
        missed = [key for key in write.puts if reading.start <= key < reading.end]
        missed += [key for key in before if write.deletes_key(key)]
        if missed:
            yield f"revision {write.revision} was not told: {missed}"


def _unlike(writes: Writes, reading: RangeReading, step: Step, before: dict[str, Seen]) -> Iterator[str]:
    """R14: a step is one change set, with all its effects in the range."""
    write = writes.by_revision.get(step.revision)
    deleted = set(step.deleted)
    gone = set() if write is None else {key for key in before if write.deletes_key(key)}
    if write is None or not (write.puts or gone):
        # Nobody was told that a change set got this revision; or only one was that changed nothing, and whose answer
        # names the revision of the one before.
        if step.records:
            yield f"nobody wrote {step.records[0]}"
        elif not writes.may_be_one_deletion(deleted):
            yield f"nobody deleted {sorted(deleted)} at revision {step.revision}"
        return
    told = {seen.key: seen for seen in step.records}
    puts = {key: seen for key, seen in write.puts.items() if reading.start <= key < reading.end}
    if told != puts:
        yield f"revision {step.revision} was told as {_difference(told, puts)}"
    # Where change sets share a revision, another one there may be one that nobody answered for.
    if deleted != gone and not (deleted > gone and writes.may_be_one_deletion(deleted - gone)):
        yield f"revision {step.revision} deletes {sorted(gone)}, and was told as deleting {sorted(deleted)}"


def _difference(told: dict[str, Seen], true: dict[str, Seen]) -> str:
    wrong = [
        f"{key}: {told.get(key)} for {true.get(key)}" for key in sorted(told | true) if told.get(key) != true.get(key)
    ]
    return "; ".join(wrong[:3])


def _deletes(ops: Sequence[Delete | DeleteRange], key: str) -> bool:
    return any(op.key == key if isinstance(op, Delete) else op.start <= key < op.end for op in ops)
