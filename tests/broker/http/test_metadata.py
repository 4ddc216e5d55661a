"""The metadata store over HTTP: every route and refusal, and watches that end when they should."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.addresses import Address
from broker.http import metadata as module
from broker.http.application import build_application
from broker.http.connection import SEND_SECONDS_MAX
from broker.http.listener import serve_http
from storage.metadata.memory import MemoryStore
from storage.metadata.store import DeleteRange, IndexEntry, MetadataStore, Put, Record, SnapshotTaken, StoreUnavailable
from tests.support.http import FakeCluster, FakeMonitor, FakeTopics, LineReader, connect, request

BASE = "/admin/v2/metadata"


def lines(body: bytes) -> list[Any]:
    assert not body or body.endswith(b"\n")
    return [json.loads(line) for line in body.splitlines()]


async def fill(store: MetadataStore, count: int, *, index_keys: int = 7) -> None:
    await store.commit(
        [
            Put(f"/n/{number:05}", b"%d" % number, indexes=(IndexEntry("i", f"k{number % index_keys}"),))
            for number in range(count)
        ]
    )


@asynccontextmanager
async def watching(server: Address, query: str = "") -> AsyncIterator[LineReader]:
    async with await trio.open_tcp_stream(server.host, server.port) as stream:
        watcher = LineReader(stream)
        await watcher.ask(server, f"{BASE}/watch{query}")
        yield watcher


# -- one record, records, index entries


async def test_a_record_is_told_whole(server: Address, store: MemoryStore) -> None:
    await store.put("/a b/ü?", b'{"x": 1}', indexes=(IndexEntry("i", "k"),), partition_key="p")
    answer = await request(server, "GET", f"{BASE}/record?key=/a%20b/%C3%BC%3F")
    assert answer.status == 200
    assert answer.json == {
        "key": "/a b/ü?",
        "version": 1,
        "value": {"x": 1},
        "indexes": [{"name": "i", "key": "k"}],
        "partition_key": "p",
        "session": None,
    }


async def test_a_record_that_is_not_there(server: Address) -> None:
    answer = await request(server, "GET", f"{BASE}/record?key=/nowhere")
    assert (answer.status, answer.reason) == (404, "There is no record '/nowhere'.")


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 512, 1000])
async def test_records_come_in_order_over_any_number_of_pages(server: Address, store: MemoryStore, count: int) -> None:
    await fill(store, count)
    await store.put("/m", b"before")
    answer = await request(server, "GET", f"{BASE}/records?prefix=/n/")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    assert [record["value"] for record in lines(answer.body)] == list(range(count))
    whole = await request(server, "GET", f"{BASE}/records")
    assert len(lines(whole.body)) == count + 1


@pytest.mark.parametrize(("limit", "told"), [(0, 0), (1, 1), (256, 256), (300, 300), (10**17, 600)])
async def test_a_limit_is_kept_to(server: Address, store: MemoryStore, limit: int, told: int) -> None:
    await fill(store, 600)
    for path in ("records?prefix=/n/", "index?name=i"):
        answer = await request(server, "GET", f"{BASE}/{path}&limit={limit}")
        assert len(lines(answer.body)) == told


@pytest.mark.parametrize("index_keys", [1, 2, 7, 5000])
async def test_index_entries_come_in_order_each_once(server: Address, store: MemoryStore, index_keys: int) -> None:
    """M9: more entries may have one index key than fit into a page."""
    await fill(store, 3000, index_keys=index_keys)
    answer = await request(server, "GET", f"{BASE}/index?name=i")
    told = [(hit["index_key"], hit["key"]) for hit in lines(answer.body)]
    assert told == [(hit.index_key, hit.record.key) for hit in await store.query("i", "", "~")]
    assert len(told) == 3000


async def test_an_index_query_has_bounds(server: Address, store: MemoryStore) -> None:
    """M9: the first bound is included, the second is not."""
    await fill(store, 70)
    answer = await request(server, "GET", f"{BASE}/index?name=i&from=k2&to=k4")
    assert {hit["index_key"] for hit in lines(answer.body)} == {"k2", "k3"}
    assert (await request(server, "GET", f"{BASE}/index?name=none")).body == b""


async def test_changes_between_two_pages_neither_repeat_nor_hide_others(
    server: Address, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that exists the whole time is listed once, whatever else is added or removed."""
    await fill(store, 1000, index_keys=1)
    calls = 0

    class Changing(MemoryStore):
        async def query(self, index: str, start: str, end: str, *, limit: int | None = None, after: str = "") -> Any:
            nonlocal calls
            calls += 1
            hits = await store.query(index, start, end, limit=limit, after=after)
            await store.commit(
                [DeleteRange("/n/00100", "/n/00150"), Put(f"/n/!{calls}", b"", indexes=(IndexEntry("i", "k0"),))]
            )
            return hits

    pages = module._HitPages(Changing(), "i", "", "~", None)
    told = []
    while page := await pages.next():
        told += [json.loads(line)["key"] for line in page]
    assert len(set(told)) == len(told)
    assert set(told) >= {f"/n/{number:05}" for number in range(1000) if not 100 <= number < 150}
    assert calls < 20


async def test_a_page_that_others_have_filled_is_asked_for_again() -> None:
    """New entries under the same index key, before the position reached, do not look like the end."""
    store = MemoryStore()
    await fill(store, 600, index_keys=1)
    pages = module._HitPages(store, "i", "", "~", None)
    told = [json.loads(line)["key"] for line in await pages.next()]
    await store.commit([Put(f"/m/{number}", b"", indexes=(IndexEntry("i", "k0"),)) for number in range(5000)])
    while page := await pages.next():
        told += [json.loads(line)["key"] for line in page]
    assert told == [f"/n/{number:05}" for number in range(600)]


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("record", "key"),
        ("record?key=", "key"),
        ("record?key=%ff", "UTF-8"),
        ("record?key=a&key=b", "twice"),
        ("record?key=a&prefix=b", "prefix"),
        ("records?prefx=b", "prefx"),
        ("records?limit=-1", "limit"),
        ("records?limit=", "limit"),
        ("records?limit=1.0", "limit"),
        ("records?limit=%D9%A3", "limit"),
        ("records?limit=" + "9" * 5000, "limit"),
        ("records?" + "&".join(f"p{number}=" for number in range(1000)), "too many parameters"),
        ("index", "name"),
        ("index?name=", "name"),
        ("index?name=i&limit=x", "limit"),
        ("watch?prefix=%C3", "UTF-8"),
        ("watch?key=a", "key"),
    ],
)
async def test_a_parameter_that_is_none_is_refused_with_a_reason(server: Address, target: str, word: str) -> None:
    answer = await request(server, "GET", f"{BASE}/{target}")
    assert answer.status == 412
    assert word in answer.reason
    assert len(answer.reason) < 200


@pytest.mark.parametrize(("method", "path"), [("POST", "records"), ("DELETE", "record?key=/a"), ("GET", "snapshot")])
async def test_nothing_can_be_changed_from_here(server: Address, store: MemoryStore, method: str, path: str) -> None:
    await store.put("/a", b"")
    assert (await request(server, method, f"{BASE}/{path}")).status == 405
    assert store.peek("/a") is not None


class Failing(MemoryStore):
    """Answers this many scans, then fails."""

    def __init__(self, scans: int) -> None:
        super().__init__()
        self._scans = scans

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        self._scans -= 1
        if self._scans < 0:
            raise StoreUnavailable("the store has gone away")
        return await super().scan(start, end, limit=limit)


@pytest.mark.parametrize("scans", [0, 2])
async def test_a_store_that_fails_is_told(
    topics: FakeTopics, monitor: FakeMonitor, listener: trio.SocketListener, nursery: trio.Nursery, scans: int
) -> None:
    """A failure before the first record is a refusal; a later one is the last line."""
    store = Failing(scans)
    await fill(store, 1000)
    server = await nursery.start(serve_http, build_application(topics, monitor, store, FakeCluster()), listener)
    answer = await request(server, "GET", f"{BASE}/records")
    if scans:
        told = lines(answer.body)
        assert (answer.status, len(told)) == (200, 2 * module.PAGE_RECORDS + 1)
        assert told[-1] == {"failed": "the store has gone away"}
    else:
        assert (answer.status, answer.reason) == (503, "The store has gone away.")


# -- snapshots


class Snapshotting(MemoryStore):
    """A store that can take snapshots."""

    async def take_snapshot(self) -> SnapshotTaken:
        return SnapshotTaken(3, 2, 1)


async def test_a_snapshot_is_taken_by_stores_that_have_one(
    topics: FakeTopics, monitor: FakeMonitor, listener: trio.SocketListener, nursery: trio.Nursery
) -> None:
    server = await nursery.start(
        serve_http, build_application(topics, monitor, Snapshotting(), FakeCluster()), listener
    )
    answer = await request(server, "POST", f"{BASE}/snapshot")
    assert (answer.status, answer.json) == (200, {"sequence": 3, "revision": 2, "size_bytes": 1})


async def test_a_store_without_snapshots_says_so(server: Address) -> None:
    answer = await request(server, "POST", f"{BASE}/snapshot")
    reason = "This broker's metadata store takes no snapshots. Back up etcd with its own tools."
    assert (answer.status, answer.reason) == (501, reason)


async def test_a_web_page_cannot_ask_for_a_snapshot(server: Address) -> None:
    answer = await request(server, "POST", f"{BASE}/snapshot", headers={"origin": "http://evil.example"})
    assert answer.status == 403


# -- watches


async def test_a_watch_tells_what_is_there_and_then_every_change(server: Address, store: MemoryStore) -> None:
    """M14, R14: there is no gap, change sets are whole, and records outside the prefix do not appear."""
    await store.put("/w/a", b"1")
    await store.put("/other", b"1")
    async with watching(server, "?prefix=/w/") as watcher:
        assert (await watcher.line())["event"] == "present"
        assert await watcher.line() == {"event": "listed", "revision": 2}
        await store.put("/other", b"2")
        await store.commit([Put("/w/b", b"2"), Put("/w/a", b"3"), Put("/x", b"")])
        await store.delete("/w/a")
        told = [await watcher.line() for _ in range(3)]
        assert [(step["event"], step["key"], step["revision"], step.get("more")) for step in told] == [
            ("written", "/w/a", 4, True),
            ("written", "/w/b", 4, None),
            ("deleted", "/w/a", 5, None),
        ]


async def test_a_watch_costs_nothing_while_nothing_changes(server: Address, store: MemoryStore) -> None:
    """Changes are pushed, not polled: no timer and no task runs."""
    async with watching(server) as watcher:
        await watcher.line()
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
        assert store.statistics().watches == 1


async def test_a_watch_ends_when_its_reader_leaves(server: Address, store: MemoryStore) -> None:
    with capture_logs() as logs:
        async with watching(server) as watcher:
            await watcher.line()
        await wait_all_tasks_blocked()
    assert store.statistics().watches == 0
    assert logs == []


async def test_a_request_sent_ahead_does_not_end_a_watch(server: Address, store: MemoryStore) -> None:
    """The broker reads only as much of it as fits, and never answers it, because the watch does not end."""
    async with watching(server) as watcher:
        await watcher.line()
        await watcher.stream.send_all(f"GET {BASE}/record?key=x HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await wait_all_tasks_blocked()
        await store.put("/a", b"")
        assert (await watcher.line())["key"] == "/a"


async def test_a_slow_reader_gets_the_difference_and_holds_up_nobody(server: Address, store: MemoryStore) -> None:
    """M17: changes that the reader missed are merged with later ones."""
    value = b'"' + b"x" * 100_000 + b'"'
    async with watching(server) as watcher:
        await watcher.line()
        for number in range(6000):
            await store.put(f"/{number % 100}", value)
        held: dict[str, int] = {}
        while len(held) < 100 or min(held.values()) <= 5900:
            told = await watcher.line()
            assert told["revision"] >= max(held.values(), default=0)
            assert told["version"] > held.get(told["key"], 0)
            held[told["key"]] = told["version"]
        assert held == {f"/{number % 100}": number + 1 for number in range(5900, 6000)}


async def test_a_reader_that_takes_nothing_is_cut_off(
    server: Address, store: MemoryStore, mock_clock: MockClock
) -> None:
    """That is not the broker's fault, so nothing is logged."""
    with capture_logs() as logs:
        async with watching(server) as watcher:
            await watcher.line()
            value = b"x" * 1_000_000
            for number in range(20):
                await store.put(f"/{number}", value)
            await wait_all_tasks_blocked()
            assert store.statistics().watches == 1
            mock_clock.jump(SEND_SECONDS_MAX)
            await wait_all_tasks_blocked()
            assert store.statistics().watches == 0
    assert logs == []


async def test_a_watch_whose_store_ends_says_why(server: Address, store: MemoryStore) -> None:
    async with watching(server) as watcher:
        await watcher.line()
        store._end(OSError("disk full"))
        assert await watcher.line() == {"failed": "the metadata store has ended: disk full"}
        assert await watcher.line() is None


@pytest.mark.parametrize("is_sending", [False, True])
async def test_stopping_ends_a_watch_properly_and_at_once(
    topics: FakeTopics,
    monitor: FakeMonitor,
    store: MemoryStore,
    listener: trio.SocketListener,
    nursery: trio.Nursery,
    mock_clock: MockClock,
    is_sending: bool,
) -> None:
    """The answer ends after the last whole line, even if a line is being sent."""
    stop = trio.Event()
    stopped = trio.Event()

    async def serve(*, task_status: trio.TaskStatus[Address]) -> None:
        await serve_http(
            build_application(topics, monitor, store, FakeCluster()), listener, stop=stop, task_status=task_status
        )
        stopped.set()

    server = await nursery.start(serve)
    async with watching(server) as watcher:
        await watcher.line()
        if is_sending:
            await store.commit([Put(f"/{number:02}", b"x" * 1_000_000) for number in range(20)])
        await wait_all_tasks_blocked()
        stop.set()
        await wait_all_tasks_blocked()
        if is_sending:
            assert [(await watcher.line())["key"] for _ in range(20)] == [f"/{number:02}" for number in range(20)]
        assert await watcher.line() is None
        await stopped.wait()
    assert mock_clock.current_time() == 0


async def test_so_many_watch_at_a_time(
    topics: FakeTopics,
    monitor: FakeMonitor,
    listener: trio.SocketListener,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WATCHES_MAX", 2)
    server = await nursery.start(serve_http, build_application(topics, monitor, MemoryStore(), FakeCluster()), listener)
    async with watching(server) as first, watching(server) as second:
        for watcher in (first, second):
            await watcher.line()
        answer = await request(server, "GET", f"{BASE}/watch")
        assert (answer.status, "2 programs" in answer.reason) == (503, True)
        assert (await request(server, "GET", f"{BASE}/records")).status == 200
    await wait_all_tasks_blocked()
    async with watching(server) as watcher:
        assert await watcher.line() == {"event": "listed", "revision": 0}


async def test_a_watch_of_too_many_records_is_refused(
    server: Address, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise listing them would block the broker."""
    monkeypatch.setattr(module, "WATCH_RECORDS_MAX", 600)
    await fill(store, 600)
    async with watching(server, "?prefix=/n/") as watcher:
        assert (await watcher.line())["key"] == "/n/00000"
    await store.put("/n/x", b"")
    answer = await request(server, "GET", f"{BASE}/watch?prefix=/n/")
    assert answer.status == 412
    assert "600 records" in answer.reason
    async with watching(server, "?prefix=/n/x") as watcher:
        assert (await watcher.line())["key"] == "/n/x"


async def test_heads_of_lists_and_watches_are_answered(server: Address, store: MemoryStore) -> None:
    await fill(store, 1000)
    connection = await connect(server)
    async with connection.stream:
        for path in ("records", "watch", "index?name=i"):
            answer = await connection.request("HEAD", f"{BASE}/{path}")
            assert (answer.status, answer.body) == (200, b"")
    assert store.statistics().watches == 0
