"""The calls of concurrent clients of a metadata store: recorded, written as JSON lines, and judged.

    history = History()
    client = Client(1, store, history)
    await client.commit("/g1", [Put("/g1/a", b"1.1.0", expected=ABSENT)])
    history.write(path)
    verdict = judge(history.lines())    # Porcupine's

A call is recorded when it is made and completed when it returns. A call that never returns, or raises StoreUnavailable,
has an unknown outcome: for the judge it takes effect at any later time, or never. (A read without an answer says
nothing
and is left out.) Times are the ticks of a counter, one at each invocation and each return. All clients run in one
thread, so the counter has the order of the events.

Each call concerns the keys of one group, so the judge can take the groups one by one. Every value is written once, so
it
shows who wrote what was read.
"""

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from scripts.need import place
from storage.metadata.store import (
    Check,
    Committed,
    Conflict,
    Delete,
    DeleteRange,
    IndexHit,
    MetadataStore,
    Op,
    Put,
    PutSequential,
    Record,
)

GROUP_SECONDS_MAX: Final = 60
"""How long the judge looks at one group of keys before it says that it could not decide."""

PADDING: Final = b"."
"""What may follow a value's name any number of times, to make it large."""


def text_of(value: bytes) -> str:
    """Return a value as histories show it: its padding is only counted."""
    name = value.rstrip(PADDING)
    return name.decode() if len(name) == len(value) else f"{name.decode()}+{len(value) - len(name)}"


class Seen(NamedTuple):
    """A record as a client saw it."""

    key: str
    value: str
    version: int
    index_key: str = ""

    @classmethod
    def of(cls, record: Record, index_key: str = "") -> "Seen":
        """Return the judged part of a record."""
        return cls(record.key, text_of(record.value), record.version, index_key)


@dataclass(slots=True)
class Call:
    """One call, and what is known of its outcome."""

    client: int
    group: str
    kind: str
    """get, scan, query or commit; seen for what watches told, which is no call and has no time."""
    invoked: int = 0
    returned: int | None = None
    outcome: str = "unknown"
    """ok, conflict or unknown."""
    asked: dict[str, Any] = field(default_factory=dict)
    """The arguments of a read."""
    ops: tuple[Op, ...] = ()
    records: tuple[Seen, ...] = ()
    revision: int = 0
    keys: tuple[str | None, ...] = ()
    conflict: tuple[str, int, int] | None = None

    def line(self) -> bytes:
        """Return the line that the judge reads."""
        told: dict[str, Any] = {
            "client": self.client,
            "group": self.group,
            "call": self.kind,
            "outcome": self.outcome,
            "invoked": self.invoked,
            **self.asked,
        }
        if self.returned is not None:
            told["returned"] = self.returned
        if self.kind == "commit":
            told["ops"] = [_op_line(op) for op in self.ops]
        if self.records:
            told["records"] = [record._asdict() for record in self.records]
        if self.kind == "commit" and self.outcome == "ok":
            told |= {"revision": self.revision, "keys": self.keys}
        if self.conflict is not None:
            told["conflict"] = dict(zip(("key", "expected", "actual"), self.conflict, strict=True))
        return orjson.dumps(told)


@dataclass(slots=True)
class History:
    """All calls, in the order in which they were made."""

    calls: list[Call] = field(default_factory=list)
    _ticks: Any = field(default_factory=lambda: count(1))

    def tick(self) -> int:
        """Return the next tick."""
        moment: int = next(self._ticks)
        return moment

    def saw(self, groups: Iterable[tuple[str, Seen]]) -> None:
        """Add records that watches reported, with their groups: their writes took effect, answered or not."""
        self.calls += [Call(0, group, "seen", outcome="ok", records=(seen,)) for group, seen in groups]

    def lines(self) -> bytes:
        """Return what the judge reads."""
        return b"\n".join(call.line() for call in self.calls if call.outcome != "unknown" or call.kind == "commit")

    def write(self, path: Path) -> None:
        """Write the history to a file."""
        path.write_bytes(self.lines() + b"\n")


class Client:
    """Makes calls to a store and records them. It returns and raises what the store does."""

    def __init__(self, number: int, store: MetadataStore, history: History) -> None:
        self._number = number
        self._store = store
        self._history = history

    async def get(self, group: str, key: str) -> Record | None:
        call = self._invoked(group, "get", {"key": key})
        record = await self._store.get(key)
        self._returned(call, [] if record is None else [Seen.of(record)])
        return record

    async def scan(self, group: str, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        call = self._invoked(group, "scan", {"start": start, "end": end, "limit": limit})
        records = await self._store.scan(start, end, limit=limit)
        self._returned(call, [Seen.of(record) for record in records])
        return records

    async def query(self, group: str, index: str, start: str, end: str, *, limit: int | None = None) -> list[IndexHit]:
        call = self._invoked(group, "query", {"index": index, "start": start, "end": end, "limit": limit})
        hits = await self._store.query(index, start, end, limit=limit)
        self._returned(call, [Seen.of(hit.record, hit.index_key) for hit in hits])
        return hits

    async def commit(self, group: str, ops: Sequence[Op]) -> Committed:
        call = self._invoked(group, "commit", {}, tuple(ops))
        try:
            committed = await self._store.commit(ops)
        except Conflict as conflict:
            call.conflict = conflict.key, conflict.expected, conflict.actual
            call.returned, call.outcome = self._history.tick(), "conflict"
            raise
        call.returned, call.outcome = self._history.tick(), "ok"
        call.revision, call.keys = committed.revision, committed.keys
        return committed

    def _invoked(self, group: str, kind: str, asked: dict[str, Any], ops: tuple[Op, ...] = ()) -> Call:
        given = {name: value for name, value in asked.items() if value is not None}
        call = Call(self._number, group, kind, self._history.tick(), asked=given, ops=ops)
        self._history.calls.append(call)
        return call

    def _returned(self, call: Call, records: Iterable[Seen]) -> None:
        call.returned, call.outcome, call.records = self._history.tick(), "ok", tuple(records)


class Verdict(NamedTuple):
    """The judge's verdict on a history."""

    verdict: str
    """legal, illegal or undecided."""
    complaints: tuple[str, ...]


def judge(lines: bytes, *, shares_revisions: bool = False, pictures: Path | None = None) -> Verdict:
    """Let the judge read a history; blocks.

    `shares_revisions`: change sets that were made at the same time and touch different keys may have one revision.
    `pictures`: a folder for what an illegal history looks like.

    Raises:
        NeedError: the judge is not built, with the command that does.
    """
    command = [str(place("porcupine")), f"-timeout={GROUP_SECONDS_MAX}s"]
    if shares_revisions:
        command.append("-shared-revisions")
    if pictures is not None:
        command.append(f"-pictures={pictures}")
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, check=True)
    said = orjson.loads(done.stdout)
    return Verdict(said["verdict"], tuple(said["complaints"] or ()))


def _op_line(op: Op) -> dict[str, Any]:
    line: dict[str, Any]
    if isinstance(op, Put):
        line = {"op": "put", "key": op.key, "value": text_of(op.value), "expected": op.expected}
    elif isinstance(op, PutSequential):
        line = {"op": "sequential", "prefix": op.prefix, "value": text_of(op.value)}
    elif isinstance(op, Delete):
        line = {"op": "delete", "key": op.key, "expected": op.expected}
    elif isinstance(op, Check):
        line = {"op": "check", "key": op.key, "expected": op.expected}
    else:
        assert isinstance(op, DeleteRange)
        line = {"op": "delete_range", "start": op.start, "end": op.end}
    if isinstance(op, Put | PutSequential):
        line["indexes"] = [entry._asdict() for entry in op.indexes]
    return {name: value for name, value in line.items() if value is not None}
