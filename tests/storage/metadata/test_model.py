"""Random change sets compared with a model that is simple enough to be the definition, on every store."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from unittest import mock

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.metadata import log
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import (
    ABSENT,
    Check,
    Committed,
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    IndexHit,
    InvalidOperation,
    MetadataStore,
    Op,
    Put,
    PutSequential,
    Record,
)
from tests.support.disk import SimulatedFiles
from tests.support.etcd import etcd_store, fresh_root
from tests.support.examples import examples
from tidewire.cli.local_etcd import EtcdProcess

DATA = Path("/data")
KEYS = st.sampled_from(["/a", "/b", "/b/1", "/c", "/s", "/é", "/\U00010000"])
ENTRIES = st.lists(st.builds(IndexEntry, st.sampled_from("ij"), st.sampled_from(["x", "y", ""])), max_size=3).map(tuple)
EXPECTED = st.none() | st.sampled_from([ABSENT, 1, 2, 3, 4, 5, 6])
OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(Put, KEYS, st.binary(max_size=3), EXPECTED, ENTRIES),
    st.builds(PutSequential, st.sampled_from(["/s", "/b"]), st.binary(max_size=3), st.just("p"), ENTRIES),
    st.builds(Delete, KEYS, EXPECTED),
    st.builds(DeleteRange, KEYS, KEYS),
    st.builds(Check, KEYS, st.sampled_from([ABSENT, 1, 2, 3])),
)
CHANGE_SETS = st.lists(st.lists(OPS, max_size=4), max_size=12)


class Judged(Protocol):
    """What of a store is compared with the model."""

    async def commit(self, ops: Sequence[Op]) -> Committed: ...

    async def scan(self, start: str, end: str) -> list[Record]: ...

    async def query(self, index: str, start: str, end: str) -> list[IndexHit]: ...

    async def barrier(self) -> int: ...


class Renumbered:
    """A store whose revisions have gaps; its change sets are counted from 1."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._revisions = [0]

    async def commit(self, ops: Sequence[Op]) -> Committed:
        try:
            done = await self._store.commit([self._with_revision(op) for op in ops])
        except Conflict as conflict:
            raise Conflict(conflict.key, self._count(conflict.expected), self._count(conflict.actual)) from conflict
        if done.revision != self._revisions[-1]:
            self._revisions.append(done.revision)
        return Committed(self._count(done.revision), done.keys)

    async def scan(self, start: str, end: str) -> list[Record]:
        return [self._counted(record) for record in await self._store.scan(start, end)]

    async def query(self, index: str, start: str, end: str) -> list[IndexHit]:
        found = await self._store.query(index, start, end)
        return [IndexHit(hit.index_key, self._counted(hit.record)) for hit in found]

    async def barrier(self) -> int:
        return self._count(await self._store.barrier())

    def of(self, store: MetadataStore) -> "Renumbered":
        """Use the same numbers for another store on the same state."""
        other = Renumbered(store)
        other._revisions = self._revisions
        return other

    def _with_revision(self, op: Op) -> Op:
        if not isinstance(op, Put | Delete | Check) or op.expected is None:
            return op
        # One that is not there yet must not be there later either, so it is told from the others by its sign.
        is_known = op.expected < len(self._revisions)
        return replace(op, expected=self._revisions[op.expected] if is_known else -op.expected)

    def _count(self, revision: int) -> int:
        # One at which nothing changed stands for the one before.
        return -revision if revision < 0 else bisect_right(self._revisions, revision) - 1

    def _counted(self, record: Record) -> Record:
        return record._replace(version=self._count(record.version))


@dataclass
class Model:
    """The contract, as short as possible."""

    records: dict[str, Record] = field(default_factory=dict)
    revision: int = 0

    def commit(self, ops: list[Op], keys: tuple[str | None, ...]) -> None:
        """Apply a change set that a store accepted; `keys` are those that it assigned."""
        changes = False
        for op, key in zip(ops, keys, strict=True):
            if isinstance(op, Put | PutSequential):
                assert key is not None
                indexes = tuple(dict.fromkeys(op.indexes))
                self.records[key] = Record(key, op.value, self.revision + 1, indexes, op.partition_key)
                changes = True
            elif isinstance(op, Delete):
                changes |= self.records.pop(op.key, None) is not None
            elif isinstance(op, DeleteRange):
                for doomed in [other for other in self.records if op.start <= other < op.end]:
                    del self.records[doomed]
                    changes = True
        self.revision += changes

    def conflicts(self, ops: list[Op]) -> bool:
        for op in ops:
            if isinstance(op, Put | Delete | Check) and op.expected is not None:
                record = self.records.get(op.key)
                if op.expected != (ABSENT if record is None else record.version):
                    return True
        return False

    async def check(self, store: Judged) -> None:
        ordered = [self.records[key] for key in sorted(self.records)]
        assert await store.scan("", "\U0010ffff") == ordered
        for index in "ij":
            hits = sorted((key, record.key) for record in ordered for name, key in record.indexes if name == index)
            assert [(hit.index_key, hit.record.key) for hit in await store.query(index, "", "z")] == hits
        assert await store.barrier() == self.revision


async def run(store: Judged, change_sets: list[list[Op]]) -> tuple[Model, list[object]]:
    model = Model()
    answers: list[object] = []
    for ops in change_sets:
        try:
            done = await store.commit(ops)
        except InvalidOperation as invalid:
            answers.append(type(invalid))
        except Conflict as conflict:
            assert model.conflicts(ops)
            answers.append(str(conflict))
        else:
            assert not model.conflicts(ops)
            model.commit(ops, done.keys)
            assert done.revision == model.revision
            answers.append(done)
        await model.check(store)
    return model, answers


@settings(deadline=None, max_examples=examples(60))
@given(CHANGE_SETS)
def test_every_store_is_the_model(change_sets: list[list[Op]]) -> None:
    """M20, M21, R27: all have the same answers and the same state, also after reopening."""

    async def story() -> None:
        disk = SimulatedFiles()
        async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=600) as store:
            model, answers = await run(store, change_sets)
        assert (await run(MemoryStore(), change_sets))[1] == answers
        async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
            await model.check(store)

    with mock.patch.object(log, "PREALLOCATION_BYTES", 4096):
        trio.run(story)


def without_numbers(answer: object) -> object:
    """Return the answer without the numbers of sequential puts, because a refused one may use numbers up."""
    if isinstance(answer, Committed):
        return answer.revision, [key and re.sub("-[0-9]{20}$", "", key) for key in answer.keys]
    return answer


@settings(deadline=None, max_examples=examples(40))
@given(CHANGE_SETS)
def test_etcd_is_the_model_too(etcd_server: EtcdProcess, change_sets: list[list[Op]]) -> None:
    """M20, M21: the answers equal those of the memory store, except for numbers, also for another process."""

    async def story() -> None:
        root = fresh_root()
        async with etcd_store(etcd_server.endpoint, root=root) as store:
            renumbered = Renumbered(store)
            model, answers = await run(renumbered, change_sets)
            expected = (await run(MemoryStore(), change_sets))[1]
            assert [without_numbers(answer) for answer in answers] == [without_numbers(answer) for answer in expected]
            async with etcd_store(etcd_server.endpoint, root=root) as other:
                await model.check(renumbered.of(other))

    trio.run(story)
