"""The embedded metadata store in a separate process that can be killed: the real store on the real disk.

    with store_process(tmp_path / "data") as process:
        process.start()
        async with RemoteStore.connect(process.address) as store:
            await store.put("/a", b"1")
        process.kill()                                        # kill -9
        process.start(Death(write=3, is_done=False))          # and it dies instead of its third write to the disk

The process serves the store's calls over a loopback connection (tests/support/remote_store.py is the client). Each call
runs in its own task, so concurrent calls of clients reach the store like concurrent tasks of a broker. A watch is read
by `next_watch`, one call for each `next`, so a slow reader there is a slow reader of the store.
"""

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import trio

from broker.addresses import Address
from storage.files import DiskFiles
from storage.metadata.cluster.reign_snapshots import SNAPSHOT_LOG_BYTES
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import Conflict, KeyWatch, MetadataError, MetadataStore, RangeWatch
from tests.support.dying_process import Death, DyingProcess
from tests.support.frames import Peer

HOST: Final = "127.0.0.1"

STORE_PROGRAM: Final = "tests.support.store_process"
"""This module, whose `main` serves the real store."""

StoreOpener = Callable[[Path, int], AbstractAsyncContextManager[MetadataStore]]


class StoreProcess(DyingProcess):
    """See the module's docstring; made by `store_process`."""

    def __init__(self, data_dir: Path, *, snapshot_log_bytes: int, program: str) -> None:
        """Set up; nothing runs yet."""
        super().__init__(
            program,
            [],
            name=f"the store on {data_dir}",
            stderr_path=data_dir.with_name(data_dir.name + ".stderr"),
        )
        self.address = Address(HOST, 0)
        self._arguments = [str(data_dir), str(snapshot_log_bytes)]

    def start(self, death: Death | None = None) -> bool:
        """Start it on the existing data, and wait until it answers. Return False if it killed itself before.

        Raises:
            BrokerFailure: it ended in another way, or was not ready in time.
        """
        told = self.launch(self._arguments, death)
        if told is None:
            return False
        self.address = Address(HOST, int(told.removeprefix("ready port=")))
        return True


@contextmanager
def store_process(
    data_dir: Path, *, snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES, program: str = STORE_PROGRAM
) -> Iterator[StoreProcess]:
    """Set up a store on `data_dir`. It is killed at the end if it runs. `program` is the module whose `main` runs."""
    process = StoreProcess(data_dir, snapshot_log_bytes=snapshot_log_bytes, program=program)
    try:
        yield process
    finally:
        process.close()


# ------------------------------------------------------------------------------------------ in the process of the store


@asynccontextmanager
async def open_embedded(data_dir: Path, snapshot_log_bytes: int) -> AsyncIterator[MetadataStore]:
    """Open the store that is served."""
    async with EmbeddedStore.open(DiskFiles(), data_dir, snapshot_log_bytes=snapshot_log_bytes) as store:
        yield store


def main(open_store: StoreOpener = open_embedded) -> None:
    """Serve the store in the folder that the command line names, until SIGTERM."""
    data_dir, snapshot_log_bytes = sys.argv[1:]
    trio.run(_serve, open_store(Path(data_dir), int(snapshot_log_bytes)))


async def _serve(opening: AbstractAsyncContextManager[MetadataStore]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with opening as store, trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host=HOST)
            handler = partial(_serve_client, store)
            await nursery.start(trio.serve_listeners, handler, listeners)
            print(f"ready port={listeners[0].socket.getsockname()[1]}", flush=True)
            async for _signal in signals:
                nursery.cancel_scope.cancel()
                break


async def _serve_client(store: MetadataStore, stream: trio.SocketStream) -> None:
    async with trio.open_nursery() as nursery:
        calls = _Calls(store, Peer(stream), nursery)
        async for number, name, arguments in calls.peer:
            if name == "give_up":
                calls.give_up(number)
            else:
                nursery.start_soon(calls.answer, number, getattr(calls, name), arguments)
        nursery.cancel_scope.cancel()


class _Calls:
    """One client's calls: one method for each."""

    def __init__(self, store: MetadataStore, peer: Peer, nursery: trio.Nursery) -> None:
        self.peer = peer
        self.get = store.get
        self.scan = store.scan
        self.query = store.query
        self.barrier = store.barrier
        self.commit = store.commit
        self._store = store
        self._nursery = nursery
        self._numbers = count(1)
        self._scopes: dict[int, trio.CancelScope] = {}
        """Of the calls under way."""
        self._watches: dict[int, KeyWatch | RangeWatch] = {}
        self._closings: dict[int, trio.Event] = {}

    async def answer(self, number: int, method: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> None:
        """Make the call, and send its result or its error."""
        with trio.CancelScope() as scope:
            self._scopes[number] = scope
            try:
                told = ("returned", await method(**arguments))
            except Conflict as conflict:
                told = ("conflict", (conflict.key, conflict.expected, conflict.actual))
            except MetadataError as error:
                told = ("raised", (type(error).__name__, str(error)))
        del self._scopes[number]
        if scope.cancelled_caught:
            return
        try:
            await self.peer.send((number, *told))
        except trio.BrokenResourceError:
            # Its client is gone, and will hear nothing.
            return

    def give_up(self, number: int) -> None:
        """Cancel a call whose caller was cancelled, unless it has ended. Its result is discarded."""
        if number in self._scopes:
            self._scopes[number].cancel()

    async def open_watch(self, kind: str, where: tuple[str, ...]) -> int:
        """Open a watch and keep it open until `close_watch`. Return its number."""
        number = next(self._numbers)
        following = self._store.watch_key(*where) if kind == "key" else self._store.watch_range(*where)
        await self._nursery.start(self._hold, number, following)
        return number

    async def _hold(
        self,
        number: int,
        following: AbstractAsyncContextManager[KeyWatch | RangeWatch],
        task_status: trio.TaskStatus[None],
    ) -> None:
        closing = self._closings[number] = trio.Event()
        async with following as followed:
            self._watches[number] = followed
            task_status.started()
            await closing.wait()
        del self._watches[number], self._closings[number]

    async def run_there(self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> Any:
        """Run the client's function on the store in this process, and return its result."""
        return await function(self._store, *arguments)

    async def next_watch(self, watch: int) -> Any:
        """Take one step of an open watch."""
        return await self._watches[watch].next()

    async def close_watch(self, watch: int) -> None:
        """Close the watch."""
        self._closings[watch].set()


if __name__ == "__main__":
    main()
