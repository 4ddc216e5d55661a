"""The store on etcd when etcd is unreachable, forgets, or its answers are lost."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.rpc import COMPACT, LEASE_REVOKE, RANGE, TXN, Rpc, RpcError
from storage.metadata.etcd.store import EtcdStore
from storage.metadata.store import ABSENT, Conflict, Delete, Put, PutSequential, RangeWatch, StoreFull, StoreUnavailable
from tests.support.etcd import etcd_store, fresh_root, running_etcd
from tests.support.metadata import keys
from tests.support.proxy import Proxy, open_proxy
from tidewire.cli.local_etcd import EtcdProcess


@pytest.fixture
def mortal_etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    """Run an etcd that the test may kill."""
    with running_etcd(tmp_path) as etcd:
        yield etcd


@pytest.fixture
async def proxy(etcd_server: EtcdProcess) -> AsyncIterator[Proxy]:
    async with open_proxy(etcd_server.endpoint) as opened:
        yield opened


async def compact(store: EtcdStore) -> None:
    """Let etcd forget every state but the current one."""
    revision = store.statistics().revision
    await store._rpc.call(COMPACT, pb.CompactionRequest(revision=revision, physical=True), seconds_max=5)


async def follow(watch: RangeWatch, until: str) -> list[tuple[int, list[str], list[str]]]:
    """Return what a watch reports, up to the change that writes `until`."""
    told: list[tuple[int, list[str], list[str]]] = []
    while not told or until not in told[-1][1]:
        change = await watch.next()
        told.append((change.revision, [record.key for record in change.records], list(change.deleted)))
    return told


async def test_a_watch_goes_on_after_the_server_was_killed(mortal_etcd: EtcdProcess) -> None:
    """M15, M14: nothing is lost, doubled or reordered; writers and a watch use different stores."""
    root = fresh_root()
    async with (
        etcd_store(mortal_etcd.endpoint, root=root) as writer,
        etcd_store(mortal_etcd.endpoint, root=root) as reader,
        reader.watch_range("/r/", "/r0") as watch,
        reader.watch_key("/r/0") as key_watch,
    ):
        assert (await watch.next()).records == ()
        assert await key_watch.next() is None
        versions = [await writer.put(f"/r/{number}", b"") for number in range(5)]
        mortal_etcd.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.put, "/r/meanwhile", b"")
            await trio.to_thread.run_sync(mortal_etcd.start)
        versions += [await writer.put(f"/r/{number}", b"anew") for number in range(5)]
        await writer.put("/r/last", b"")
        told = await follow(watch, "/r/last")
        revisions = [revision for revision, _, _ in told]
        assert revisions == sorted(set(revisions))
        assert set(versions) < set(revisions)
        assert [written for _, written, _ in told if written != ["/r/meanwhile"]] == [
            *([f"/r/{number}"] for number in range(5)),
            *([f"/r/{number}"] for number in range(5)),
            ["/r/last"],
        ]
        record = await key_watch.next()
        assert record is not None
        assert (record.value, record.version) == (b"anew", versions[5])
        assert reader.statistics().extra["watch_resumed"] >= 1
        assert reader.statistics().extra["listed"] == 1


async def test_what_was_compacted_meanwhile_is_told_as_a_difference(etcd_server: EtcdProcess, proxy: Proxy) -> None:
    """M14: a watch that cannot resume lists again and reports exactly the differences."""
    root = fresh_root()
    async with etcd_store(etcd_server.endpoint, root=root) as other:
        session = await other.open_session(5)
        await other.put("/r/ephemeral", b"", session=session)
        for key in ("/r/same", "/r/changed", "/r/gone", "/r/remade"):
            await other.put(key, b"old")
        async with etcd_store(proxy.endpoint, root=root) as store, store.watch_range("/r/", "/r0") as watch:
            listing = await watch.next()
            proxy.cut()
            await session.close()
            await other.put("/r/changed", b"new")
            await other.commit([Delete("/r/gone"), Delete("/r/remade")])
            await other.put("/r/remade", b"old")
            await other.put("/r/passing", b"")
            await other.delete("/r/passing")
            last = await other.put("/r/made", b"")
            await compact(other)
            proxy.mend()
            change = await watch.next()
            assert change.revision >= last > listing.revision
            assert [record.key for record in change.records] == ["/r/changed", "/r/made", "/r/remade"]
            assert change.deleted == ("/r/ephemeral", "/r/gone")
            assert await store.scan("", "~") == await other.scan("", "~")
            assert store.statistics().extra["listed"] == 2
            # It follows change set by change set again.
            await other.put("/r/1", b"")
            assert [record.key for record in (await watch.next()).records] == ["/r/1"]


async def test_the_end_of_a_session_alone_is_found_after_a_compaction(etcd_server: EtcdProcess, proxy: Proxy) -> None:
    """M14, M18: it is no change set, but is reported anyway."""
    root = fresh_root()
    async with etcd_store(etcd_server.endpoint, root=root) as other:
        session = await other.open_session(5)
        await other.put("/r/ephemeral", b"", session=session)
        async with etcd_store(proxy.endpoint, root=root) as store, store.watch_range("/r/", "/r0") as watch:
            listing = await watch.next()
            proxy.cut()
            await session.close()
            await compact(other)
            proxy.mend()
            change = await watch.next()
            assert change.deleted == ("/r/ephemeral",)
            assert change.revision > listing.revision
            assert await store.barrier() == change.revision
            assert await store.get("/r/ephemeral") is None


@pytest.mark.parametrize("times", [1, 3])
async def test_a_write_whose_answer_was_lost_is_made_once(proxy: Proxy, times: int) -> None:
    """M22, M5: it is sent again, and the copies detect that it was made."""
    async with etcd_store(proxy.endpoint) as store:
        await store.put("/warm", b"")
        keys_written: list[str | None] = []

        async def write() -> None:
            done = await store.commit([PutSequential("/op/1", b"", "1"), Put("/a", b"1", ABSENT)])
            keys_written.extend(done.keys)

        async with trio.open_nursery() as nursery:
            for attempt in range(times):
                proxy.mute()
                if not attempt:
                    nursery.start_soon(write)
                await proxy.answer_lost()
                proxy.mend()
        assert await keys(store) == sorted(["/a", keys_written[0] or "", "/warm"])
        assert keys_written[0] == "/op/1-00000000000000000001"
        assert store.statistics().extra["writes_repeated"] >= 1
        # The number that the lost answer carried is known to be used.
        (second,) = (await store.commit([PutSequential("/op/1", b"", "1")])).keys
        assert second == "/op/1-00000000000000000002"


async def test_a_write_sent_again_does_not_undo_what_came_after_it(etcd_server: EtcdProcess, proxy: Proxy) -> None:
    """M22: its copy arrives late, and changes nothing."""
    root = fresh_root()
    async with etcd_store(proxy.endpoint, root=root) as store, etcd_store(etcd_server.endpoint, root=root) as other:
        await store.put("/warm", b"")
        versions: list[int] = []

        async def write() -> None:
            versions.append(await store.put("/a", b"early"))

        async with trio.open_nursery() as nursery:
            proxy.mute()
            nursery.start_soon(write)
            async with other.watch_key("/a") as watch:
                while await watch.next() is None:
                    pass
            late = await other.put("/a", b"late")
            proxy.mend()
        assert versions[0] < late
        record = await store.get("/a")
        assert record is not None
        assert (record.value, record.version) == (b"late", late)


async def test_a_refusal_whose_answer_was_lost_stays_a_refusal(proxy: Proxy) -> None:
    """M22, M1: a conflict is believed only when no copy of the request can be made any more."""
    async with etcd_store(proxy.endpoint) as store:
        version = await store.put("/a", b"")
        refused: list[int] = []

        async def write() -> None:
            try:
                await store.commit([Put("/b", b"", ABSENT), Put("/a", b"1", version - 1)])
            except Conflict as conflict:
                refused.append(conflict.actual)

        async with trio.open_nursery() as nursery:
            proxy.mute()
            nursery.start_soon(write)
            await proxy.answer_lost()
            proxy.mend()
        assert refused == [version]
        assert await keys(store) == ["/a"]


@pytest.mark.parametrize("writes", [1, 2])
async def test_what_etcd_made_before_it_found_itself_full_counts(
    etcd_server: EtcdProcess, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """M22: etcd may find only behind a transaction that its space is exceeded. The next one is not taken for it."""
    call = Rpc.call

    async def call_beyond_the_quota(rpc: Rpc, method: object, *given: object, **named: float) -> object:
        answer: object = await call(rpc, method, *given, **named)  # type: ignore[arg-type, type-var]
        if method is TXN:
            raise RpcError("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")
        return answer

    async with etcd_store(etcd_server.endpoint) as store:
        await store.put("/warm", b"")

        async def write(key: str) -> None:
            await store.put(key, b"", expected=ABSENT)

        with monkeypatch.context() as full:
            full.setattr(Rpc, "call", call_beyond_the_quota)
            async with trio.open_nursery() as nursery:
                for number in range(writes):
                    nursery.start_soon(write, f"/made/{number}")
        version = await store.put("/next", b"")
        record = await store.get("/next")
        assert record is not None
        assert record.version == version
        assert await keys(store) == [*(f"/made/{number}" for number in range(writes)), "/next", "/warm"]


async def test_what_a_full_etcd_did_not_make_is_certain(
    etcd_server: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M22: the slot tells. A copy whose answer was lost may still come, so with one the outcome stays unknown."""
    call, loses = Rpc.call, False

    async def refuse(rpc: Rpc, method: object, *given: object, **named: float) -> object:
        nonlocal loses
        if method is TXN and loses:
            loses = False
            raise RpcError("UNAVAILABLE", "the connection broke off")
        if method is TXN:
            raise RpcError("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")
        answer: object = await call(rpc, method, *given, **named)  # type: ignore[arg-type, type-var]
        return answer

    async with etcd_store(etcd_server.endpoint) as store:
        await store.put("/warm", b"")
        with monkeypatch.context() as full:
            full.setattr(Rpc, "call", refuse)
            with pytest.raises(StoreFull, match="space exceeded"):
                await store.put("/refused", b"")
            loses = True
            with pytest.raises(StoreUnavailable, match="space exceeded") as unknown:
                await store.put("/lost", b"")
            assert not isinstance(unknown.value, StoreFull)
        await store.put("/next", b"")
        assert await keys(store) == ["/next", "/warm"]


async def test_without_its_slot_a_lost_answer_stays_unknown(
    etcd_server: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M22, M5: the writer's lease ended meanwhile, and nothing tells any more that the first copy was made."""
    call = Rpc.call
    is_lost = True

    async def lose_first(rpc: Rpc, method: object, *given: object, **named: float) -> object:
        nonlocal is_lost
        answer: object = await call(rpc, method, *given, **named)  # type: ignore[arg-type, type-var]
        if method is TXN and is_lost:
            is_lost = False
            assert writer is not None
            await call(rpc, LEASE_REVOKE, pb.LeaseRevokeRequest(ID=writer.id), seconds_max=5)
            raise RpcError("UNAVAILABLE", "the connection broke off")
        return answer

    async with etcd_store(etcd_server.endpoint) as store:
        await store.put("/warm", b"")
        writer = store._writer._lease
        with monkeypatch.context() as losing:
            losing.setattr(Rpc, "call", lose_first)
            with pytest.raises(StoreUnavailable, match="lease has ended"):
                await store.commit([PutSequential("/op", b"", "1")])
        await store.put("/later", b"")
        assert await keys(store) == ["/later", "/op-00000000000000000001", "/warm"]


async def test_without_an_answer_in_time_the_outcome_is_unknown(proxy: Proxy) -> None:
    """M22: a write, a read and a session end in StoreUnavailable, and work when etcd is back."""
    async with etcd_store(proxy.endpoint) as store:
        version = await store.put("/a", b"0")
        store._retry.seconds_max = 0.3
        proxy.cut()
        with pytest.raises(StoreUnavailable, match="gave no answer"):
            await store.put("/a", b"1", expected=version)
        with pytest.raises(StoreUnavailable):
            await store.get("/a")
        with pytest.raises(StoreUnavailable):
            await store.open_session(5)
        proxy.mend()
        store._retry.seconds_max = 20
        record = await store.get("/a")
        assert record is not None
        if record.value == b"0":
            assert await store.put("/a", b"1", expected=version) > version


async def test_a_session_that_nobody_got_is_not_kept_alive(
    etcd_server: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M18: its lease was granted. Then etcd refused what shows it, or its opener was cancelled."""

    async def refuse(*_given: object) -> None:
        raise StoreUnavailable("etcd refuses")

    async def cancel(_revision: int) -> None:
        opening.cancel()
        await trio.sleep_forever()

    async with etcd_store(etcd_server.endpoint) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store._retry, "repeat", refuse)
            with pytest.raises(StoreUnavailable, match="refuses"):
                await store.open_session(60)
        assert not store._leases._leases
        with monkeypatch.context() as patch, trio.CancelScope() as opening:
            patch.setattr(store._follower, "reached", cancel)
            await store.open_session(60)
        assert opening.cancelled_caught
        assert not store._leases._leases


async def test_acknowledged_writes_survive_a_kill(mortal_etcd: EtcdProcess) -> None:
    """M23: other writes are complete or absent."""
    acknowledged: list[int] = []
    async with etcd_store(mortal_etcd.endpoint) as store:

        async def write(first: int) -> None:
            for number in range(first, 10_000, 4):
                await store.commit([Put(f"/{half}/{number:05}", b"", ABSENT) for half in "ab"])
                acknowledged.append(number)

        async with trio.open_nursery() as nursery:
            for first in range(4):
                nursery.start_soon(write, first)
            while len(acknowledged) < 100:
                await store.barrier()
            mortal_etcd.kill()
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(mortal_etcd.start)
        # One reading: what was not acknowledged still stands, and may be made between two.
        there = await keys(store)
        halves = [{int(key[3:]) for key in there if key.startswith(f"/{half}/")} for half in "ab"]
        assert halves[0] == halves[1] >= set(acknowledged)


async def test_an_older_state_ends_the_store(mortal_etcd: EtcdProcess) -> None:
    """M15: it never goes back, and does not continue with what it has, either."""
    async with etcd_store(mortal_etcd.endpoint) as store:
        session = await store.open_session(60)
        for number in range(20):
            await store.put(f"/{number}", b"")
        async with store.watch_key("/19") as watch:
            await watch.next()
            mortal_etcd.kill()
            mortal_etcd.lose_data()
            await trio.to_thread.run_sync(mortal_etcd.start)
            with pytest.raises(StoreUnavailable, match="older state"):
                await watch.next()
        await session.wait_lost()
        with pytest.raises(StoreUnavailable, match="older state"):
            await store.put("/a", b"")


async def test_no_server_is_one_sentence(tmp_path: Path) -> None:
    """M22: the sentence names the servers and the time."""
    with pytest.raises(StoreUnavailable, match=r"etcd at 127\.0\.0\.1:1, 127\.0\.0\.1:2 gave no answer for 0\.3 s"):
        async with EtcdStore.open(["127.0.0.1:1", "127.0.0.1:2"], root="/t", connect_seconds_max=0.3):
            raise AssertionError("nobody is there")


async def test_calls_that_fail_together_turn_to_the_next_server(etcd_server: EtcdProcess) -> None:
    """M15, E14: and not back to the one that none of them reached, however many they are."""
    async with EtcdStore.open([etcd_server.endpoint, "127.0.0.1:1"], root=fresh_root()) as store:
        rpc, failed = store._rpc, list[RpcError]()
        rpc.turn(0)
        assert rpc.current == 1

        async def ask() -> None:
            with pytest.raises(RpcError) as refused:
                await rpc.call(RANGE, pb.RangeRequest(key=b"a"), seconds_max=5)
            failed.append(refused.value)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask)
        for error in failed:
            await store._retry.attempts().after(error)
        assert rpc.current == 0
        await store.put("/a", b"")


async def test_another_server_of_the_list_is_asked(etcd_server: EtcdProcess) -> None:
    """M15: a list may contain unreachable servers."""
    async with EtcdStore.open(["127.0.0.1:1", etcd_server.endpoint], root=fresh_root()) as store:
        await store.put("/a", b"")
        assert await keys(store) == ["/a"]
