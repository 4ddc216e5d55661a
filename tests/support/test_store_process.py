"""The store in a separate process: writes survive a kill, and calls return the store's results and errors."""

from pathlib import Path

import pytest
import trio

from storage.metadata.store import ABSENT, Change, Conflict, IndexEntry, InvalidOperation, Put, StoreUnavailable
from tests.support.dying_process import Death
from tests.support.remote_store import RemoteStore
from tests.support.store_process import store_process


async def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    """M23: an acknowledged write survives kill -9, and a call in progress has an unknown outcome."""
    with store_process(tmp_path / "data") as process:
        assert process.start()
        async with RemoteStore.connect(process.address) as store:
            version = await store.put("/a", b"1", indexes=(IndexEntry("by", "k"),))
            process.kill()
            with pytest.raises(StoreUnavailable):
                await store.get("/a")
        assert process.start()
        async with RemoteStore.connect(process.address) as store:
            record = await store.get("/a")
            assert record is not None
            assert (record.value, record.version) == (b"1", version)
            assert [hit.record for hit in await store.query("by", "k", "l")] == [record]
            assert await store.scan("", "~") == [record]
        process.stop()


async def test_refusals_and_watches_come_over(tmp_path: Path) -> None:
    with store_process(tmp_path / "data") as process:
        process.start()
        async with (
            RemoteStore.connect(process.address) as store,
            store.watch_key("/a") as key_watch,
            store.watch_range("/a", "/b") as range_watch,
        ):
            assert await key_watch.next() is None
            assert await range_watch.next() == Change(await store.barrier())
            committed = await store.commit([Put("/a", b"1", ABSENT)])
            record = await store.get("/a")
            assert record is not None
            assert await key_watch.next() == record
            assert await range_watch.next() == Change(committed.revision, (record,))
            with pytest.raises(Conflict) as caught:
                await store.put("/a", b"2", expected=ABSENT)
            assert (caught.value.key, caught.value.expected, caught.value.actual) == ("/a", ABSENT, record.version)
            with pytest.raises(InvalidOperation):
                await store.put("", b"")


async def test_it_dies_at_the_write_it_was_told(tmp_path: Path) -> None:
    """M23: a write that died before it was on the disk was not answered."""
    with store_process(tmp_path / "data") as process:
        assert process.start()
        process.stop()
        # It may have died while it opened its log.
        if process.start(Death(1, is_done=False)):
            async with RemoteStore.connect(process.address) as store:
                with pytest.raises(StoreUnavailable):
                    await store.put("/a", b"1")
            assert await trio.to_thread.run_sync(process.wait)
        process.start()
        with pytest.raises(StoreUnavailable, match="nobody"):
            async with RemoteStore.connect(process.address._replace(port=1)):
                pass
