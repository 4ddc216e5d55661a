"""The embedded store of several brokers on one data folder: one of them decides at a time, the others follow it.

    async with SharedStore.open_shared(files, data_dir, ...) as store:
        ...

The store plays one role after another (`playing`). Its image, watches, sessions and waiting calls belong to no role, so
a fail-over breaks none of them (C5).

| role                 | a write                              | a read                                 | others' link |
|----------------------|--------------------------------------|----------------------------------------|--------------|
| SEEKING, TAKING_OVER | waits for a controller, 20 s at most | the same                               | is closed    |
| FOLLOWING            | is sent over the link                | asks over the link for the log's place | is closed    |
| LEADING              | is decided here, by the same number  | looks at the fence                     | is served    |
| ENDED                | is refused                           | is refused                             | is closed    |

A write that has no answer when a role ends is sent again in the next role, under its number. It is made once (M22).

The store is a context manager. It plays its role while the tasks in its body are cancelled and clean up.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Self

import structlog
import trio

from storage.files import Files
from storage.metadata.cluster.follower_store import FollowerStore
from storage.metadata.cluster.playing import Connect, Participant, RolePlayer
from storage.metadata.cluster.reign import Reign
from storage.metadata.cluster.reign_snapshots import SNAPSHOT_LOG_BYTES
from storage.metadata.cluster.roles import Role
from storage.metadata.opening import metadata_directory
from storage.metadata.snapshots import View
from storage.metadata.store import SnapshotTaken, StoreStatistics, StoreUnavailable

log = structlog.get_logger(__name__)


class SharedStore(FollowerStore):
    """See the module's docstring. Made by `open_shared`."""

    def __init__(self, participant: Participant) -> None:
        super().__init__(broker=participant.broker, timeout=participant.timeout, random=participant.random)
        self._broker = participant.broker
        self.player = RolePlayer(participant, self._following, self._image, show=self.show, end=self._end)

    @classmethod
    @asynccontextmanager
    async def open_shared(
        cls,
        files: Files,
        data_dir: Path,
        listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
        *,
        broker: str,
        address: str,
        connect: Connect,
        timeout: float,
        random: Random,
        snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES,
    ) -> AsyncIterator[Self]:
        """The store of `<data_dir>/metadata`, for as long as the context is open. It is made if it is absent.

        `address` is where the other brokers reach `listeners`; the store closes these. It opens once a controller has
        answered, or this process is the controller. `timeout` is the session timeout in seconds.

        Raises:
            AlreadyLocked: a broker without an internal address, or an offline tool, has it open.
            CorruptMetadata, OffChain: a file is damaged, or of a later release.
            OSError: the disk failed.
        """
        directory = metadata_directory(data_dir)
        await files.run(files.make_dir, directory)
        lock = await files.run(lambda: files.lock(directory / "lock", shared=True))
        try:
            store = cls(Participant(files, directory, broker, address, connect, timeout, random, snapshot_log_bytes))
            # Shielded, because while the owner is cancelled, the owner's last writes must still be made.
            playing = trio.CancelScope(shield=True)

            async def play() -> None:
                with playing:
                    await store.player.play(listeners)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(play)
                nursery.start_soon(store._end_overdue_sessions)
                try:
                    failure = await store._until_ready()
                    if failure is None:
                        yield store
                finally:
                    await store._close()
                    playing.cancel()
                    nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure
        finally:
            lock.close()

    @property
    def role(self) -> Role:
        """What this process does for the store now."""
        return self.player.role

    # ----------------------------------------------------------------------------------------------------- the contract

    @property
    def controller(self) -> str | None:
        """See `MetadataStore.controller`."""
        found = self.player.controller
        if self.role is Role.LEADING:
            return self._broker
        return found.broker if self.role is Role.FOLLOWING and found is not None else ""

    @contextmanager
    def telling_controller(self, listener: Callable[[], None]) -> Iterator[None]:
        """See `MetadataStore.telling_controller`."""
        self.player.listeners.append(listener)
        try:
            yield
        finally:
            self.player.listeners.remove(listener)

    async def barrier(self) -> int:
        """See `MetadataStore.barrier`. The controller looks at the fence, and answers from its own image."""
        leading = self.player.leading
        if leading is not None:
            await self._checkpoint()
            if leading.reigns():
                return self._image.revision
        return await super().barrier()

    async def take_snapshot(self) -> SnapshotTaken:
        """See `TakesSnapshots.take_snapshot`.

        Raises:
            StoreUnavailable: this process is not the controller.
        """
        return await self._reign("takes snapshots").take_snapshot()

    def at_one_moment(
        self, note: Callable[[], Awaitable[None]], *, feature_level: int
    ) -> AbstractAsyncContextManager[View]:
        """See `Reign.at_one_moment`.

        Raises:
            StoreUnavailable: this process is not the controller.
        """
        return self._reign("can begin a backup").at_one_moment(note, feature_level=feature_level)

    def _reign(self, does: str) -> Reign:
        player = self.player
        if player.leading is None:
            broker = "no broker" if player.controller is None else f"broker {player.controller.broker}"
            raise StoreUnavailable(f"{broker} is the metadata controller, and only the controller {does}")
        return player.leading.reign

    def statistics(self) -> StoreStatistics:
        """See `MetadataStore.statistics`; `extra` says what the links did, and what the reign did if there is one."""
        followed = super().statistics()
        leading = self.player.leading
        told = {
            **followed.extra,
            "leads": leading is not None,
            "joined_in_last_hour": self.player.joined_in_last_hour,
        }
        return replace(followed, extra=told if leading is None else {**told, **leading.reign.statistics()})

    async def _resign(self) -> None:
        await super()._resign()
        await self.player.close()

    async def _until_ready(self) -> BaseException | None:
        """Return once a read was answered, or why the store has ended.

        The first image of a large store may take longer than one barrier waits.
        """
        while True:
            try:
                await self.barrier()
            except StoreUnavailable as unavailable:
                if self._failure is not None:
                    return self._failure
                log.warning("the metadata store has no controller yet", reason=str(unavailable))
            else:
                return None
