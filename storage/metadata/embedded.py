"""The metadata store inside the broker: the image, a log that makes it last, and snapshots that keep the log short.

    async with EmbeddedStore.open(DiskFiles(), data_dir) as store:
        ...

The store is a context manager, not a task that its owner starts. It goes on committing while the tasks in its body are
cancelled and clean up, and ends only when all of them have ended. `cluster.reign` says how it commits.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

import trio

from storage.files import Files
from storage.metadata.cluster.reign import CLOSED, Reign
from storage.metadata.cluster.reign_snapshots import SNAPSHOT_LOG_BYTES
from storage.metadata.epochs import Deposed
from storage.metadata.image_store import ImageStore
from storage.metadata.opening import metadata_directory, open_folder
from storage.metadata.proposed import Proposed
from storage.metadata.snapshots import View
from storage.metadata.store import Committed, Op, SnapshotTaken, StoreStatistics
from storage.metadata.take_over import Started


class EmbeddedStore(ImageStore):
    """See the module's docstring. Made by `open`."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        started: Started,
        *,
        snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES,
        recent_bytes_max: int = 0,
    ) -> None:
        super().__init__(started.image)
        self.reign = Reign(
            self.show,
            files,
            directory,
            started,
            snapshot_log_bytes=snapshot_log_bytes,
            recent_bytes_max=recent_bytes_max,
        )
        """The role of this process: it decides."""
        self._broker = started.epoch.found.broker

    @classmethod
    @asynccontextmanager
    async def open(
        cls, files: Files, data_dir: Path, *, broker: str = "", snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES
    ) -> AsyncIterator[Self]:
        """The store of `<data_dir>/metadata`, for as long as the context is open. It is made if it is absent.

        `broker` is the id of the broker that opens it.

        Sessions of an earlier process have ended, and their records are gone. If the disk fails later, the store
        answers StoreUnavailable and its sessions are lost; the context itself continues until its body ends. Exceptions
        of the body come out in an exception group, as from any nursery.

        Raises:
            AlreadyLocked: it is open elsewhere.
            DiskFull: there is no space for a new log file.
            CorruptMetadata, OffChain: a file is damaged, or of a later release.
        """
        directory = metadata_directory(data_dir)
        opened = await files.run(partial(open_folder, files, directory, broker=broker))
        try:
            store = cls(files, directory, opened.started, snapshot_log_bytes=snapshot_log_bytes)
            async with store.leading():
                yield store
        finally:
            opened.close()

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """Decide while the context is open."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lead, nursery)
            try:
                yield
            finally:
                self._close()
                # A snapshot is abandoned half-way. The committer is shielded and ends by itself.
                nursery.cancel_scope.cancel()

    async def take_snapshot(self) -> SnapshotTaken:
        """See `TakesSnapshots.take_snapshot`. If a snapshot is being written, another one follows it."""
        return await self.reign.take_snapshot()

    def at_one_moment(
        self, note: Callable[[], Awaitable[None]], *, feature_level: int
    ) -> AbstractAsyncContextManager[View]:
        """See `Reign.at_one_moment`."""
        return self.reign.at_one_moment(note, feature_level=feature_level)

    @property
    def controller(self) -> str | None:
        """See `MetadataStore.controller`. It is this broker, or no broker has opened the store."""
        return self._broker or None

    def statistics(self) -> StoreStatistics:
        """See `MetadataStore.statistics`; `extra` says what the log and snapshots did."""
        return StoreStatistics(
            self._image.revision,
            len(self._image.records),
            len(self._watches),
            len(self.reign.queue),
            self.reign.statistics(),
        )

    async def commit_along(self, ops: Sequence[Op]) -> Committed:
        """See `MetadataStore.commit_along`. Waits up to ALONG_SECONDS_MAX for another caller's proposal."""
        await self.reign.queue.wait_for_company()
        return await self.commit(ops)

    async def _readable(self) -> None:
        await super()._readable()
        self.reign.require_reigning()

    async def _decide(self, proposed: Proposed) -> Committed:
        return await self.reign.propose(proposed)

    async def _lead(self, nursery: trio.Nursery) -> None:
        try:
            await self.reign.run(nursery)
        except (OSError, Deposed) as ended:
            self._end(ended)
        except BaseException as defect:
            self._end(defect)
            raise
        else:
            self._end(CLOSED)

    def _close(self) -> None:
        """Let the committer end once it has committed what waits. New calls are refused."""
        if self._failure is None:
            self._failure = CLOSED
        self.reign.close()
