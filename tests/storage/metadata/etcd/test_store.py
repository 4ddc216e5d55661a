"""What only the store on etcd has: its limits, several processes, leases, and a root."""

import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.requests import OPERATIONS_MAX
from storage.metadata.etcd.retry import Retry
from storage.metadata.etcd.rpc import LEASE_REVOKE, TXN, Method
from storage.metadata.etcd.store import EtcdStore, UnknownFormat
from storage.metadata.store import (
    ABSENT,
    ChangeSetTooLarge,
    Check,
    Conflict,
    Delete,
    IndexEntry,
    Op,
    Put,
    PutSequential,
    SessionLost,
    StoreEnded,
)
from tests.support.cancellation import cancel_at_each_step
from tests.support.etcd import HeldBack, etcd_store, fresh_root
from tests.support.metadata import hits, keys
from tests.support.proxy import open_proxy
from tidewire.cli.local_etcd import EtcdProcess

ROOT = Path(__file__).resolve().parents[4]

DYING = """
import sys
import trio
from storage.metadata.etcd.store import EtcdStore
from storage.metadata.store import IndexEntry

async def main(endpoint, root):
    async with EtcdStore.open([endpoint], root=root) as store:
        session = await store.open_session(2)
        await store.put("/e/theirs", b"", session=session, indexes=(IndexEntry("i", "k"),))
        print("ready", flush=True)
        await trio.sleep_forever()

trio.run(main, *sys.argv[1:])
"""


async def test_another_process_session_can_be_ended(etcd_server: EtcdProcess) -> None:
    """M18, C21: at once, by its number. Its owner learns it, and a second end does nothing."""
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as dead,
        etcd_store(etcd_server.endpoint, root=root) as store,
    ):
        session = await dead.open_session(60)
        await dead.put("/e", b"", session=session)
        record = (await store.fresh(["/e"])).records["/e"]
        assert record is not None
        assert record.session is not None
        for _ in range(2):
            await store.end_session(record.session)
            assert store.peek("/e") is None
        with pytest.raises(SessionLost):
            await dead.put("/e", b"", session=session)
        await session.wait_lost()


async def test_as_many_operations_as_etcd_takes(etcd_server: EtcdProcess) -> None:
    """M25: there may be one condition fewer; more operations are refused in advance and change nothing."""
    async with etcd_store(etcd_server.endpoint) as store:
        names = [f"/{number:03}" for number in range(OPERATIONS_MAX - 1)]
        await store.commit([PutSequential("/op", b"", "p"), *(Put(key, b"", ABSENT) for key in names)])
        assert len(await keys(store)) == OPERATIONS_MAX
        before = await store.barrier()
        too_many: list[list[Op]] = [
            [Put(f"/x/{number:03}", b"") for number in range(OPERATIONS_MAX + 1)],
            [Delete(f"/{number:03}") for number in range(OPERATIONS_MAX + 1)],
            [Put("/x", b""), *(Check(f"/y/{number:03}", ABSENT) for number in range(OPERATIONS_MAX))],
        ]
        for ops in too_many:
            with pytest.raises(ChangeSetTooLarge, match="etcd allows 124"):
                await store.commit(ops)
        assert await store.barrier() == before
        await store.commit([Delete(key) for key in names])
        assert len(await keys(store)) == 1


async def test_as_many_bytes_as_etcd_takes(etcd_server: EtcdProcess) -> None:
    """M25: a request above etcd's 1.5 MiB is refused in advance."""
    async with etcd_store(etcd_server.endpoint) as store:
        await store.commit([Put("/a", bytes(740_000)), Put("/b", bytes(740_000))])
        with pytest.raises(ChangeSetTooLarge, match="bytes"):
            await store.commit([Put("/c", bytes(760_000)), Put("/d", bytes(760_000))])
        assert await keys(store) == ["/a", "/b"]


async def test_conditions_alone_tell_the_revision_at_which_they_held(
    etcd_server: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M1, M2: a late answer must not name a revision at which they hold no more."""
    async with etcd_store(etcd_server.endpoint) as store:
        version = await store.put("/a", b"1")
        ask = Retry.repeat

        async def late(retry: Retry, method: Method[Any, Any], request: Any) -> Any:
            answer = await ask(retry, method, request)
            monkeypatch.undo()
            await store.put("/a", b"2", expected=version)
            return answer

        monkeypatch.setattr(Retry, "repeat", late)
        assert (await store.commit([Check("/a", version)])).revision == version


async def test_conditions_alone_tell_the_revision_of_the_last_change(etcd_server: EtcdProcess) -> None:
    """M1: later change sets that changed nothing do not count."""
    async with etcd_store(etcd_server.endpoint) as store:
        assert (await store.commit([Check("/a", ABSENT)])).revision == 0
        version = await store.put("/a", b"1")
        assert (await store.commit([Delete("/b")])).revision == version
        assert (await store.commit([Check("/a", version)])).revision == version


async def test_processes_take_numbers_from_one_sequence(etcd_server: EtcdProcess) -> None:
    """M5, M2: numbers are distinct and rise across processes; a later put of any process gets a higher one."""
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as first,
        etcd_store(etcd_server.endpoint, root=root) as second,
    ):
        taken: list[str | None] = []

        async def take(store: EtcdStore) -> None:
            for _ in range(10):
                highest = max((key for key in taken if key), default="")
                (key,) = (await store.commit([PutSequential("/op", b"", "p")])).keys
                assert key is not None
                assert key > highest
                taken.append(key)

        async with trio.open_nursery() as nursery:
            for store in (first, second) * 3:
                nursery.start_soon(take, store)
        assert len(set(taken)) == 60
        assert await keys(first) == await keys(second) == sorted(key for key in taken if key)


async def test_of_two_processes_one_wins(etcd_server: EtcdProcess) -> None:
    """M2, M1: what one process was answered, the other one reads at once."""
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as first,
        etcd_store(etcd_server.endpoint, root=root) as second,
    ):
        version = 0
        for number in range(30):
            won: list[int] = []

            async def write(store: EtcdStore, expected: int, value: bytes, won: list[int] = won) -> None:
                try:
                    won.append(await store.put("/a", value, expected=expected))
                except Conflict:
                    assert (await store.get("/a")) is not None

            async with trio.open_nursery() as nursery:
                for store in (first, second):
                    nursery.start_soon(write, store, version, b"%d" % number)
            (version,) = won
            for store in (first, second):
                record = await store.get("/a")
                assert record is not None
                assert record.version == version


async def test_a_dead_process_loses_its_ephemeral_records(etcd_server: EtcdProcess) -> None:
    """M18: this happens after its timeout and etcd's slack, with index entries; a living session stays."""
    root = fresh_root()
    async with etcd_store(etcd_server.endpoint, root=root) as store:
        mine = await store.open_session(1)
        await store.put("/e/mine", b"", session=mine, indexes=(IndexEntry("i", "k"),))
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", DYING, etcd_server.endpoint, root], stdout=-1, cwd=ROOT
        )
        assert process.stdout is not None
        assert (await process.stdout.receive_some(6)).startswith(b"ready")
        assert await hits(store, "i") == [("k", "/e/mine"), ("k", "/e/theirs")]
        async with store.watch_range("/e/", "/e0") as watch:
            assert len((await watch.next()).records) == 2
            process.kill()
            await process.wait()
            await process.stdout.aclose()
            # Longer than the session of its own that is kept alive meanwhile.
            assert (await watch.next()).deleted == ("/e/theirs",)
        assert await hits(store, "i") == [("k", "/e/mine")]
        await store.put("/e/mine", b"again", session=mine)


@pytest.mark.parametrize("ends_session", [True, False])
async def test_a_reading_waits_for_what_the_watch_has_not_brought(etcd_server: EtcdProcess, ends_session: bool) -> None:
    """M1, M18: this covers another process's answered writes, and the end of a session, which is no change set."""
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as store,
        etcd_store(etcd_server.endpoint, root=root) as other,
    ):
        session = await other.open_session(60)
        await other.put("/e", b"", session=session)
        assert await store.get("/e") is not None
        held = HeldBack(store)
        if ends_session:
            await session.close()
        else:
            await other.delete("/e")
        read: list[object] = []

        async def get() -> None:
            read.append(await store.get("/e"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(get)
            for _ in range(5):
                await other.barrier()
            assert read == []
            held.let_go()
        assert read == [None]


async def test_who_ends_the_session_of_another_process_finds_it_gone(etcd_server: EtcdProcess) -> None:
    """M18: on return also the image does not hold its records, so that `peek` shows none of them."""
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as store,
        etcd_store(etcd_server.endpoint, root=root) as other,
    ):
        session = await other.open_session(30)
        await other.put("/e", b"", session=session)
        assert await store.get("/e") is not None
        held = HeldBack(store)
        shown: list[object] = []

        async def end() -> None:
            await store.end_session(session.id)
            shown.append(store.peek("/e"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            await session.wait_lost()
            for _ in range(5):
                await other.barrier()
            assert shown == []
            held.let_go()
        assert shown == [None]


async def test_silence_ends_a_session_here_too(etcd_server: EtcdProcess) -> None:
    """M18, M19: a process that cannot reach etcd for its timeout must assume that its session has ended."""
    async with open_proxy(etcd_server.endpoint) as proxy, etcd_store(proxy.endpoint) as store:
        session = await store.open_session(1)
        await store.put("/e", b"", session=session)
        proxy.cut()
        await session.wait_lost()
        with pytest.raises(SessionLost):
            await store.put("/e/2", b"", session=session)
        proxy.mend()
        assert await keys(store, "/e/") == []


async def test_a_session_that_etcd_ended_is_lost(etcd_server: EtcdProcess) -> None:
    """M19: this holds whether its end or a write for it is noticed first."""
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as store,
        etcd_store(etcd_server.endpoint, root=root) as other,
    ):
        session = await store.open_session(60)
        await other._rpc.call(LEASE_REVOKE, pb.LeaseRevokeRequest(ID=session.id), seconds_max=5)
        with pytest.raises(SessionLost):
            await store.put("/e", b"", session=session)
        await session.wait_lost()
        assert await keys(store) == []


async def test_a_writer_goes_on_after_the_end_of_its_lease(etcd_server: EtcdProcess) -> None:
    """M22: its slots are created again under another lease."""
    async with etcd_store(etcd_server.endpoint) as store:
        await store.put("/a", b"")
        lease = store._writer._lease
        assert lease is not None
        await store._rpc.call(LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease.id), seconds_max=5)
        for key in ("/b", "/c"):
            await store.commit([PutSequential("/op", b"", "p"), Put(key, b"", ABSENT)])
        assert len(await keys(store)) == 5


async def test_cancelled_anywhere_a_write_is_made_or_not(etcd_server: EtcdProcess) -> None:
    """M22: after a cancellation at any point, nothing in the store is stuck, and the write is complete or absent."""
    async with etcd_store(etcd_server.endpoint) as store:
        attempts = 0

        async def write() -> None:
            nonlocal attempts
            attempts += 1
            await store.commit([PutSequential("/op", b"%d" % attempts, "p"), Put(f"/a/{attempts}", b"")])

        async def check() -> None:
            await store.put("/other", b"")
            # One reading: what was cancelled still stands, and may be made between two.
            records = await store.scan("/a/", "/oq")
            numbered = {record.value for record in records if record.key.startswith("/op")}
            named = {record.key.removeprefix("/a/").encode() for record in records if record.key.startswith("/a/")}
            assert numbered == named

        assert await cancel_at_each_step(write, check) > 3
        assert await cancel_at_each_step(store.barrier, check) > 3


async def test_cancelled_anywhere_a_session_is_opened_or_not(etcd_server: EtcdProcess) -> None:
    """M18: what was begun ends by itself, and nothing is stuck."""
    async with etcd_store(etcd_server.endpoint) as store:

        async def open_one() -> None:
            await store.open_session(5)

        assert await cancel_at_each_step(open_one, store.barrier) > 3


async def test_clusters_share_an_etcd_by_their_roots(etcd_server: EtcdProcess) -> None:
    """M20: neither sees the other, even if one root's text begins with the other's."""
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as store,
        etcd_store(etcd_server.endpoint, root=root + "1") as other,
        store.watch_range("", "~") as watch,
    ):
        await watch.next()
        await other.put("/a", b"other")
        await store.put("/b", b"")
        assert [record.key for record in (await watch.next()).records] == ["/b"]
        assert await keys(store) == ["/b"]
        assert await keys(other) == ["/a"]


async def test_what_another_process_was_answered_is_read(etcd_server: EtcdProcess) -> None:
    """C20, M2: by every read but `peek`, although this process's watch may not have brought it yet."""
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as store,
        etcd_store(etcd_server.endpoint, root=root) as other,
    ):
        for number in range(20):
            key, index = f"/{number:02}", IndexEntry("i", f"{number:02}")
            version = await other.put(key, b"", indexes=(index,))
            found = await (store if number % 2 else other).fresh([key])
            assert found.version(key) == version <= found.revision
            read = await store.get(key)
            assert read is not None
            assert [record.key for record in await store.scan(key, "~")] == [key]
            assert await hits(store, "i", index.key) == [(index.key, key)]


async def test_questions_that_wait_together_share_a_request(etcd_server: EtcdProcess) -> None:
    """C20: a thousand publishes ask for a thousand headers, with a few requests to etcd."""
    async with etcd_store(etcd_server.endpoint) as store:
        version = await store.put("/a", b"")
        before = store.statistics().extra["barriers"]
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await store.fresh(["/a"])).version("/a"))

        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(ask)
        assert answers == [version] * 1_000
        assert store.statistics().extra["barriers"] - before <= 3


async def test_a_question_without_an_answer_fails_when_the_store_closes(etcd_server: EtcdProcess) -> None:
    """M1, M22: the image as it is would be an answer of an unknown age."""
    root = fresh_root()
    async with etcd_store(etcd_server.endpoint, root=root) as other, trio.open_nursery() as nursery:
        async with etcd_store(etcd_server.endpoint, root=root) as store:
            held = HeldBack(store)
            await other.put("/a", b"")

            async def ask() -> None:
                with pytest.raises(StoreEnded, match="it was closed"):
                    await store.get("/a")

            for _ in range(2):
                # The second question waits for the first one's answer.
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
            await other.barrier()
        held.let_go()


async def test_a_question_that_a_defect_ends_has_no_answer(
    etcd_server: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M1, E11: the defect ends the store, and revision 0 would be an answer."""
    said: list[int | StoreEnded] = []

    async def ask(store: EtcdStore) -> None:
        with trio.CancelScope(shield=True):
            try:
                said.append(await store.barrier())
            except StoreEnded as ended:
                said.append(ended)

    async def fail() -> int:
        raise LookupError("a defect")

    with pytest.RaisesGroup(LookupError, flatten_subgroups=True):
        async with etcd_store(etcd_server.endpoint, root=fresh_root()) as store, trio.open_nursery() as nursery:
            monkeypatch.setattr(store, "_pass_barrier", fail)
            nursery.start_soon(ask, store)
    (answer,) = said
    assert isinstance(answer, StoreEnded)


async def test_a_later_format_is_refused(etcd_server: EtcdProcess) -> None:
    """M20: the store does not guess what a later release wrote."""
    root = fresh_root()
    async with etcd_store(etcd_server.endpoint) as store:
        put = pb.RequestOp(request_put=pb.PutRequest(key=f"{root}/f".encode(), value=b"2"))
        await store._rpc.call(TXN, pb.TxnRequest(success=[put]), seconds_max=5)
    with pytest.raises(UnknownFormat, match="format '2'"):
        async with etcd_store(etcd_server.endpoint, root=root):
            raise AssertionError("it was opened")
