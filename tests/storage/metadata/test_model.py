"""Random change sets against a model so plain that it can be read as the definition, on every store."""

from dataclasses import dataclass, field
from pathlib import Path
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
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    InvalidOperation,
    MetadataStore,
    Op,
    Put,
    PutSequential,
    Record,
)
from tests.support.disk import SimulatedFiles

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


@dataclass
class Model:
    """The contract in the fewest words."""

    records: dict[str, Record] = field(default_factory=dict)
    revision: int = 0

    def commit(self, ops: list[Op], keys: tuple[str | None, ...]) -> None:
        """Apply a change set that a store accepted; `keys` are those it assigned."""
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

    async def check(self, store: MetadataStore) -> None:
        ordered = [self.records[key] for key in sorted(self.records)]
        assert await store.scan("", "\U0010ffff") == ordered
        for index in "ij":
            hits = sorted((key, record.key) for record in ordered for name, key in record.indexes if name == index)
            assert [(hit.index_key, hit.record.key) for hit in await store.query(index, "", "z")] == hits
        assert await store.barrier() == self.revision


async def run(store: MetadataStore, change_sets: list[list[Op]]) -> tuple[Model, list[object]]:
    model = Model()
    answers: list[object] = []
    for ops in change_sets:
        try:
            done = await store.commit(ops)
        except InvalidOperation as invalid:
            answers.append(str(invalid))
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


@settings(deadline=None, max_examples=60)
@given(CHANGE_SETS)
def test_every_store_is_the_model(change_sets: list[list[Op]]) -> None:
    """M20, M21, R27: the same answers and the same state everywhere, and again after reopening."""

    async def story() -> None:
        disk = SimulatedFiles()
        async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=600) as store:
            model, answers = await run(store, change_sets)
        assert (await run(MemoryStore(), change_sets))[1] == answers
        async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
            await model.check(store)

    with mock.patch.object(log, "PREALLOCATION_BYTES", 4096):
        trio.run(story)
