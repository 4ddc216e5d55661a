"""Plays the roles of one process in the embedded store of several brokers, one after another, by the table in `roles`.

    RolePlayer.play
      |- the listener             hands other brokers' connections to the reign, and closes them if there is none
      |- one role at a time:
           SEEKING, FOLLOWING     looks at the folder, and asks the newest fence's maker for a link
           TAKING_OVER            takes the next epoch, and shows what this process's image lacks
           LEADING                runs a reign (`leading`)

What outlives a role belongs to the store: the image, what it received, its writer and its questions.

Damage in the log is believed only when a second try finds the same: a controller that is stopped, not dead, may have
been inside a write.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import structlog
import trio

from storage.epoch_files import EpochTaken
from storage.errors import SPACE_RETRY_SECONDS
from storage.files import DiskFull, Files
from storage.metadata.chain import OffChain
from storage.metadata.cluster.beats import Beat, BeatWatch
from storage.metadata.cluster.deadlines import silence_seconds
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.following import JITTER, Following, LinkRefused
from storage.metadata.cluster.leading import Leading, name_of_reign
from storage.metadata.cluster.link_streams import LinkLost
from storage.metadata.cluster.messages import Place
from storage.metadata.cluster.publication import RECENT_BYTES_MAX, Show
from storage.metadata.cluster.received_log import CannotFollow
from storage.metadata.cluster.reign import Reign
from storage.metadata.cluster.roles import Role, RoleEvent, step
from storage.metadata.cluster.seeking import look
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.epochs import Deposed, FoundEpoch, MetadataEpochs
from storage.metadata.image import Image
from storage.metadata.take_over import Started, take_over

LOOK_SECONDS: Final = 0.1
"""How often a broker that seeks looks at the folder, and connects again."""

SECOND_LOOK_SECONDS: Final = 0.1
"""How long after damage was found the log is read again, before the damage is believed."""

JOINS_COUNTED_SECONDS: Final = 3600.0
JOINS_COUNTED_MAX: Final = 1_000
"""How often a process began to follow or to lead is counted over so long, and up to so often."""

Connect = Callable[[str], Awaitable[trio.abc.Stream]]
"""Connects to a broker's address. Raises OSError."""

log = structlog.get_logger(__name__)


class Participant(NamedTuple):
    """This process, as the others on the data folder see it."""

    files: Files
    directory: Path
    """The metadata folder."""
    broker: str
    address: str
    """Where the others reach this process."""
    connect: Connect
    timeout: float
    """The session timeout, in seconds."""
    random: Random
    snapshot_log_bytes: int
    """How much log makes a snapshot due."""


class _Taken(NamedTuple):
    """What a take-over brought."""

    started: Started
    beat: Beat

    def close(self) -> None:
        """Release the controller's lock and the files."""
        self.beat.close()
        self.started.close()


class RolePlayer:
    """See the module's docstring.

    It fills `image` by `show`, or lets `following` fill it. It calls `end` with the reason when only a restart of the
    process helps.
    """

    def __init__(
        self,
        participant: Participant,
        following: Following,
        image: Image,
        *,
        show: Show,
        end: Callable[[BaseException], None],
    ) -> None:
        self.role = Role.SEEKING
        """What this process does for the store now."""
        self.moved = trio.lowlevel.ParkingLot()
        """Whoever waits for another role."""
        self.listeners: list[Callable[[], None]] = []
        """Called after each change of the role."""
        self.leading: Leading | None = None
        """The reign of this process, if it is the controller."""
        self.controller: FoundEpoch | None = None
        """The newest fence that was seen."""
        self._joined: deque[float] = deque(maxlen=JOINS_COUNTED_MAX)
        """When this process began to follow or to lead, by Trio's clock."""
        self._me = participant
        self._epochs = MetadataEpochs(participant.files, participant.directory, participant.random.getrandbits)
        self._following = following
        self._image = image
        self._show = show
        self._end = end
        self._taken: _Taken | None = None
        """What the last take-over brought, until the reign has ended."""

    @property
    def joined_in_last_hour(self) -> int:
        """How often this process began to follow or to lead, up to JOINS_COUNTED_MAX."""
        since = trio.current_time() - JOINS_COUNTED_SECONDS
        return sum(joined >= since for joined in self._joined)

    async def play(self, listeners: Sequence[trio.abc.Listener[trio.abc.Stream]]) -> None:
        """Play one role after another, until the store has ended or this is cancelled. Closes the listeners."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, listeners)
            try:
                while self.role is not Role.ENDED:
                    if self.role is Role.SEEKING:
                        await self._seek()
                    elif self.role is Role.TAKING_OVER:
                        await self._take_over()
                    else:
                        await self._lead()
            except trio.Cancelled:
                raise
            except BaseException as defect:
                self._end(defect)
                raise
            finally:
                if self._taken is not None:
                    self._taken.close()
            nursery.cancel_scope.cancel()

    async def close(self) -> None:
        """End the reign, if there is one, once it has committed what waits."""
        if self.leading is not None:
            await self.leading.close()

    def _plays(self, role: Role) -> bool:
        return self.role is role

    def _move(self, event: RoleEvent) -> None:
        role, self.role = self.role, step(self.role, event)
        self.moved.unpark_all()
        for listener in tuple(self.listeners):
            listener()
        if self.role is not role and self.role in {Role.FOLLOWING, Role.LEADING}:
            self._joined.append(trio.current_time())
        if self.role is not role:
            log.info(
                "the role in the metadata store changes", role=self.role.value, before=role.value, reason=event.value
            )

    def _move_to_end(self, event: RoleEvent, cause: BaseException) -> None:
        if not self._plays(Role.ENDED):
            self._move(event)
            self._end(cause)

    async def _listen(self, listeners: Sequence[trio.abc.Listener[trio.abc.Stream]]) -> None:
        await trio.serve_listeners(self._serve, list(listeners))

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection of another broker, if this process is the controller."""
        if self.leading is None:
            await trio.aclose_forcefully(stream)
        else:
            await self.leading.server.serve(stream)

    # SEEKING and FOLLOWING

    async def _seek(self) -> None:
        """Look at the folder, and ask whoever made the newest fence for a link, until one of them leads on."""
        me = self._me
        watch = BeatWatch(silence_seconds(me.timeout) * (1 + JITTER * me.random.random()))
        asking = trio.CancelScope()
        asked_for: FoundEpoch | None = None
        async with trio.open_nursery() as nursery:
            while self._plays(Role.SEEKING):
                asked = trio.current_time()
                try:
                    seen = await me.files.run(look, me.files, me.directory, self._epochs)
                except (CorruptMetadata, OSError) as failed:
                    if self._plays(Role.SEEKING):
                        asking.cancel()
                        self._move_to_end(RoleEvent.DISK_FAILED, failed)
                    break
                if not self._plays(Role.SEEKING):
                    # A link came up meanwhile.
                    break
                event = seen.event(watch, asked=asked, now=trio.current_time())
                if event is not None:
                    self.controller = seen.found
                    asking.cancel()
                    self._move(event)
                    break
                if seen.found is not None and (asked_for is None or seen.found.epoch != asked_for.epoch):
                    if asked_for is not None:
                        self._move(RoleEvent.NEWER_FENCE)
                    asking.cancel()
                    asking = trio.CancelScope()
                    asked_for = self.controller = seen.found
                    nursery.start_soon(self._ask, asked_for, asking, nursery.cancel_scope)
                await trio.sleep(LOOK_SECONDS)

    async def _ask(self, found: FoundEpoch, asking: trio.CancelScope, seeking: trio.CancelScope) -> None:
        """Try to follow a controller, until a link was there and has ended. Then the search begins again."""
        assert found.address is not None, "it serves others"

        def told(event: RoleEvent) -> None:
            # An answer may arrive in the step in which the search has ended otherwise.
            if not asking.cancel_called:
                self._move(event)

        said: set[str] = set()
        with asking:
            while self._plays(Role.SEEKING):
                link = _LinkUp(lambda: told(RoleEvent.LINK_UP))
                try:
                    stream = await self._me.connect(found.address)
                    await self._following.follow(stream, found.epoch, name_of_reign(found), task_status=link)
                except CannotFollow as off_chain:
                    self._move_to_end(RoleEvent.OFF_CHAIN, off_chain)
                except (LinkLost, LinkError, LinkRefused, OSError) as lost:
                    reason = str(lost)
                    # It is asked ten times a second, so each reason is logged once.
                    if reason not in said:
                        said.add(reason)
                        log.info("there is no link to the metadata controller", broker=found.broker, reason=reason)
                    told(RoleEvent.LINK_LOST)
                    if not link.is_up:
                        await trio.sleep(LOOK_SECONDS)
                        continue
                seeking.cancel()
                return

    # TAKING_OVER

    async def _take_over(self) -> None:
        gone = 0 if self.controller is None else self.controller.epoch
        damage = ""
        while True:
            try:
                self._taken = await self._me.files.run(self._take, gone, bool(damage))
            except (EpochTaken, Deposed):
                return self._move(RoleEvent.NEWER_FENCE)
            except DiskFull as full:
                if not self._joined:
                    # Nobody waits for a process that was not there before. Its start is refused.
                    return self._move_to_end(RoleEvent.DISK_FAILED, full)
                log.error("the disk is too full to take over the metadata log", reason=str(full))
                await trio.sleep(SPACE_RETRY_SECONDS)
                return self._move(RoleEvent.DISK_FULL)
            except (CorruptMetadata, OffChain) as found:
                if str(found) == damage:
                    event = RoleEvent.OFF_CHAIN if isinstance(found, OffChain) else RoleEvent.DISK_FAILED
                    return self._move_to_end(event, found)
                damage = str(found)
                await trio.sleep(SECOND_LOOK_SECONDS)
            except OSError as failed:
                return self._move_to_end(RoleEvent.DISK_FAILED, failed)
            else:
                break
        started, received = self._taken.started, self._following.log
        try:
            if started.image is self._image:
                await received.take_change_sets(started.pending, started.log.point)
            else:
                place = Place(started.epoch.epoch, started.log.point, started.image.revision)
                await received.take_image(started.image, place)
        except CannotFollow as off_chain:
            return self._move_to_end(RoleEvent.OFF_CHAIN, off_chain)
        return self._move(RoleEvent.TOOK_OVER)

    def _take(self, gone: int, is_again: bool) -> _Taken:
        """Take the epoch behind `gone`. Blocks. An earlier try may have taken one already."""
        me = self._me
        if is_again:
            newest = self._epochs.newest()
            if newest is not None and newest.broker == me.broker:
                # The earlier try made it. Whoever else has made one since was faster.
                gone = newest.epoch
        # Before the epoch, because later beats need no space.
        beat = Beat.make(me.files, me.directory, gone + 1)
        try:
            has_image = self._image.revision > 0
            started = take_over(
                me.files,
                me.directory,
                self._epochs,
                broker=me.broker,
                address=me.address,
                image=self._image if has_image else None,
                point=self._following.log.place.point if has_image else None,
                after=gone,
            )
            if started.image is not self._image:
                # Sorting a million keys here blocks this thread. At the first read, it would block the event loop.
                started.image.settle()
        except BaseException:
            beat.close()
            raise
        return _Taken(started, beat)

    # LEADING

    async def _lead(self) -> None:
        taken, me = self._taken, self._me
        assert taken is not None, "it took over"
        try:
            started = taken.started
            reign = Reign(
                self._show,
                me.files,
                me.directory,
                started._replace(image=self._image, pending=[]),
                snapshot_log_bytes=me.snapshot_log_bytes,
                recent_bytes_max=RECENT_BYTES_MAX,
            )
            self.controller = started.epoch.found
            self.leading = Leading(
                me.files, reign, self.controller, taken.beat, self._following, broker=me.broker, timeout=me.timeout
            )
            try:
                cause = await self.leading.run()
            finally:
                self.leading = None
                # The image is exactly there, because the committer shows whole groups.
                self._following.log.reached(Place(reign.epoch, reign.point, self._image.revision))
            if isinstance(cause, Deposed):
                self._move(RoleEvent.NEWER_FENCE)
            elif cause is not None:
                self._move_to_end(RoleEvent.DISK_FAILED, cause)
            else:
                # The store closes.
                await trio.sleep_forever()
        finally:
            self._taken = None
            taken.close()


class _LinkUp(trio.TaskStatus[None]):
    """Told by `follow` that a link was welcomed."""

    def __init__(self, up: Callable[[], None]) -> None:
        self.is_up = False
        self._up = up

    def started(self, value: None = None) -> None:
        """See `TaskStatus`."""
        self.is_up = True
        self._up()
