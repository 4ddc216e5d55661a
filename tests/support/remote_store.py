"""A client of tests/support/store_process.py that implements the metadata store's contract.

It leaves out sessions, and `peek`, because it has no image. When the process dies, every call in progress raises
StoreUnavailable, and so does every later one. Connect again once the process is back. If a watch's `next` is cancelled,
its result is lost.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from typing import Any, NoReturn, Self, TypeVar

import trio

from broker.addresses import Address
from storage.metadata import store as contract
from storage.metadata.store import (
    Change,
    Committed,
    Conflict,
    Fresh,
    IndexHit,
    KeyWatch,
    MetadataError,
    MetadataStore,
    Op,
    RangeWatch,
    Record,
    Session,
    StoreStatistics,
    StoreUnavailable,
)
from tests.support.frames import Peer

T = TypeVar("T")


class RemoteStore(MetadataStore):
    """See the module's docstring; made by `connect`."""

    def __init__(self, peer: Peer) -> None:
        """Set up on a connection whose other end serves a store."""
        self._peer = peer
        self._numbers = count(1)
        self._answers: dict[int, tuple[str, Any]] = {}
        self._waiting: dict[int, trio.Event] = {}
        self._is_gone = False

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: Address) -> AsyncIterator[Self]:
        """Connect to the store that is served there.

        Raises:
            StoreUnavailable: no store is served there.
        """
        try:
            stream = await trio.open_tcp_stream(*address)
        except OSError as error:
            raise StoreUnavailable(f"nobody serves a store on {address}") from error
        async with stream:
            store = cls(Peer(stream))
            refusal: MetadataError | None = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store._receive)
                try:
                    yield store
                except MetadataError as error:
                    # Raised outside the nursery, so that it comes out as what it is and not in a group.
                    refusal = error
                nursery.cancel_scope.cancel()
            if refusal is not None:
                raise refusal

    async def _receive(self) -> None:
        async for number, kind, told in self._peer:
            # A caller that was cancelled waits no more.
            if number in self._waiting:
                self._answers[number] = kind, told
                self._waiting[number].set()
        self._is_gone = True
        for waiting in self._waiting.values():
            waiting.set()

    async def _call(self, name: str, **arguments: Any) -> Any:
        if self._is_gone:
            raise StoreUnavailable("the store's process is gone")
        number = next(self._numbers)
        waiting = self._waiting[number] = trio.Event()
        try:
            with suppress(trio.BrokenResourceError):
                await self._peer.send((number, name, arguments))
            await waiting.wait()
        except trio.Cancelled:
            # The store's caller is cancelled with the one here, who for the store is the same.
            with trio.CancelScope(shield=True), suppress(trio.BrokenResourceError):
                await self._peer.send((number, "give_up", {}))
            raise
        finally:
            del self._waiting[number]
        answer = self._answers.pop(number, None)
        if answer is None:
            raise StoreUnavailable("the store's process is gone")
        kind, told = answer
        if kind == "conflict":
            raise Conflict(*told)
        if kind == "raised":
            raise getattr(contract, told[0])(told[1])
        return told

    async def run_there(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a module's function in the store's process, with the store. It is for data that is too large to send."""
        result: T = await self._call("run_there", function=function, arguments=arguments)
        return result

    async def fresh(self, keys: Collection[str]) -> Fresh:
        found: Fresh = await self._call("fresh", keys=list(keys))
        return found

    async def get(self, key: str) -> Record | None:
        record: Record | None = await self._call("get", key=key)
        return record

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        records: list[Record] = await self._call("scan", start=start, end=end, limit=limit)
        return records

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        hits: list[IndexHit] = await self._call("query", index=index, start=start, end=end, limit=limit, after=after)
        return hits

    async def commit(self, ops: Sequence[Op]) -> Committed:
        committed: Committed = await self._call("commit", ops=list(ops))
        return committed

    async def barrier(self) -> int:
        revision: int = await self._call("barrier")
        return revision

    def watch_key(self, key: str) -> AbstractAsyncContextManager[KeyWatch]:
        return self._watch("key", (key,), _RemoteKeyWatch)

    def watch_range(self, start: str, end: str) -> AbstractAsyncContextManager[RangeWatch]:
        return self._watch("range", (start, end), _RemoteRangeWatch)

    @asynccontextmanager
    async def _watch(self, kind: str, where: tuple[str, ...], made: Any) -> AsyncIterator[Any]:
        watch = await self._call("open_watch", kind=kind, where=where)
        try:
            yield made(self, watch)
        finally:
            # Nobody waits for the answer: while the connection itself is being closed none would come.
            with trio.CancelScope(shield=True), suppress(trio.BrokenResourceError):
                await self._peer.send((next(self._numbers), "close_watch", {"watch": watch}))

    def peek(self, key: str) -> NoReturn:
        raise NotImplementedError(f"{key}: no image is here to peek at")

    async def open_session(self, timeout_seconds: float) -> Session:
        raise NotImplementedError(f"no session of {timeout_seconds} seconds: this leaves sessions out")

    async def end_session(self, session_id: int) -> None:
        raise NotImplementedError(f"no session {session_id}: this leaves sessions out")

    def statistics(self) -> StoreStatistics:
        raise NotImplementedError("nobody counts here")


class _RemoteKeyWatch(KeyWatch):
    def __init__(self, store: RemoteStore, watch: int) -> None:
        self._store = store
        self._watch = watch

    async def next(self) -> Record | None:
        record: Record | None = await self._store._call("next_watch", watch=self._watch)
        return record


class _RemoteRangeWatch(RangeWatch):
    def __init__(self, store: RemoteStore, watch: int) -> None:
        self._store = store
        self._watch = watch

    async def next(self) -> Change:
        change: Change = await self._store._call("next_watch", watch=self._watch)
        return change
