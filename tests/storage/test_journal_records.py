"""The announcement that a broker recovers another one's journal: it ends with the work, and concerns nobody else's."""

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.errors import RecoveryElsewhere
from storage.journal_records import RECOVERING, JournalRecords
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Record, Session
from tests.support.ledgers import DATA

KEY = RECOVERING + "x"


class Recoverer:
    """A broker that recovers the journal of broker x."""

    def __init__(self, metadata: MemoryStore, broker_id: str, session: Session) -> None:
        self.session = session
        self._records = JournalRecords(metadata, DATA)
        self._broker_id = broker_id
        self.ends = trio.Event()
        """Set to end its work."""

    async def recover(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._records.announced("x", self._broker_id, self.session):
            task_status.started()
            await self.ends.wait()


@pytest.fixture
def metadata() -> MemoryStore:
    return MemoryStore()


async def recoverer(metadata: MemoryStore, broker_id: str) -> Recoverer:
    return Recoverer(metadata, broker_id, await metadata.open_session(10))


async def announced(metadata: MemoryStore) -> str | None:
    record = await metadata.get(KEY)
    return None if record is None else str(orjson.loads(record.value)["by"])


async def test_it_ends_with_a_work_that_is_cancelled(metadata: MemoryStore) -> None:
    """C11: the others go on in that moment."""
    one = await recoverer(metadata, "one")
    async with trio.open_nursery() as working:
        await working.start(one.recover)
        assert await announced(metadata) == "one"
        working.cancel_scope.cancel()
    assert await announced(metadata) is None


async def test_a_work_inside_another_one_is_announced_until_both_end(metadata: MemoryStore) -> None:
    """C11: a recovery of all that a broker left open contains the recovery of its journal."""
    one = await recoverer(metadata, "one")
    async with trio.open_nursery() as working:
        await working.start(one.recover)
        inner = Recoverer(metadata, "one", one.session)
        inner.ends.set()
        await inner.recover()
        assert await announced(metadata) == "one"
        one.ends.set()
    assert await announced(metadata) is None


async def test_a_stalled_recoverer_ends_no_announcement_of_another(metadata: MemoryStore) -> None:
    """C9: its session has ended meanwhile, and the next broker has begun."""
    one, two = await recoverer(metadata, "one"), await recoverer(metadata, "two")
    async with trio.open_nursery() as working:
        await working.start(one.recover)
        with pytest.raises(RecoveryElsewhere, match="one"):
            await two.recover()
        await one.session.close()
        await working.start(two.recover)
        one.ends.set()
        await wait_all_tasks_blocked()
        assert await announced(metadata) == "two"
        two.ends.set()
    assert await announced(metadata) is None


async def test_a_recovery_that_ends_at_that_moment_has_no_name(
    metadata: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C21: the log's sentence is true although nobody can be named any more."""
    one, two = await recoverer(metadata, "one"), await recoverer(metadata, "two")
    get = metadata.get

    async def late(key: str) -> Record | None:
        one.ends.set()
        await wait_all_tasks_blocked()
        return await get(key)

    async with trio.open_nursery() as working:
        await working.start(one.recover)
        monkeypatch.setattr(metadata, "get", late)
        with pytest.raises(RecoveryElsewhere, match=r"^Another broker is recovering the journal of broker x\."):
            await two.recover()
