"""What the controller does beside its reign: it serves links, beats, and makes its own broker's writes.

Its own writes are numbered like those of its followers. So a deposed controller sends those without an answer to its
successor, and they are made once. Its own session, and its broker's, need no sign of life while it reigns: each beat
looks at the fence, and a successor gives every session a full timeout from its take-over on.

    Leading.run
      |- Reign.run            the committer (shielded: it ends by `close`, by Deposed, or by a failed disk)
      |- LinkServer.run       ends the sessions that are due
      |- Writer.decide        this broker's writes, decided here
      |- Barriers.ask         reads that began before this process was the controller
      |- the beat

The reign's end ends all of it.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from storage.files import Files
from storage.metadata.cluster.beats import Beat
from storage.metadata.cluster.deadlines import beat_seconds
from storage.metadata.cluster.following import Following
from storage.metadata.cluster.messages import Barrier, Place
from storage.metadata.cluster.proposals import Told
from storage.metadata.cluster.reign import Reign
from storage.metadata.cluster.serving import LinkServer
from storage.metadata.epochs import Deposed, FoundEpoch
from storage.metadata.log import Appended
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.proposed import OpenSession, Proposed
from storage.metadata.store import StoreUnavailable


def name_of_reign(found: FoundEpoch) -> str:
    """What a HELLO says about whom it is for. Another cluster's process may have got the address meanwhile."""
    return f"{found.epoch}-{found.nonce:016x}"


class Leading:
    """One reign of this process, with all that belongs to it. `run` it once."""

    def __init__(
        self,
        files: Files,
        reign: Reign,
        found: FoundEpoch,
        beat: Beat,
        following: Following,
        *,
        broker: str,
        timeout: float,
    ) -> None:
        self.reign = reign
        self.server = LinkServer(reign, cluster=name_of_reign(found), timeout=timeout, own_nonce=following.nonce)
        self._files = files
        self._beat = beat
        self._following = following
        self._broker = broker
        self._timeout = timeout
        self._ended = trio.Event()
        self._cause: Deposed | OSError | None = None

    async def run(self) -> Deposed | OSError | None:
        """Lead until the reign ends. Return why: None if it was closed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._commit, nursery)
            try:
                await self._until_ended(self._serve)
            finally:
                # The committer is shielded. It commits what waits, then it ends by itself.
                self.reign.close()
                self._following.is_linked = False
        return self._cause

    async def close(self) -> None:
        """End the reign, once it has committed what waits."""
        self.reign.close()
        await self._ended.wait()

    def reigns(self) -> bool:
        """Whether this process is the controller. Looks at the fence, and renews this process's sessions."""
        now = trio.current_time()
        try:
            self.reign.require_reigning()
        except StoreUnavailable:
            return False
        self._following.proof.reigned(now)
        return True

    def batches(self, appended: Appended) -> None:
        """See `LinkFeed`. The own image holds it already."""

    async def _commit(self, nursery: trio.Nursery) -> None:
        try:
            await self.reign.run(nursery)
        except (OSError, Deposed) as ended:
            self._cause = ended
        finally:
            self._ended.set()
            nursery.cancel_scope.cancel()

    async def _serve(self) -> None:
        following = self._following
        session = await self._own_session()
        following.session = session
        following.timeout = self._timeout
        following.is_linked = True
        following.links += 1
        async with trio.open_nursery() as nursery:
            await nursery.start(self.server.run)
            for work in (
                partial(following.writer.decide, session, self),
                partial(following.barriers.ask, self._answer),
                self._keep_beating,
            ):
                nursery.start_soon(self._until_ended, work)

    async def _own_session(self) -> int:
        """The session that identifies this process's writer, opened if there is none."""
        nonce = self._following.nonce
        sessions = self.reign.image.sessions
        mine = max((each for each, live in sessions.items() if live.nonce == nonce and live.owner), default=0)
        if mine:
            return mine
        return (await self.reign.propose(OpenSession(round(self._timeout * 1000), self._broker, nonce))).revision

    async def submit(self, proposed: Proposed, write: WriteId, told: Told) -> None:
        """See `Decides.submit`."""
        if isinstance(proposed, OpenSession):
            proposed = OpenSession(proposed.timeout_ms, nonce=self._following.nonce)
        await self.reign.submit(proposed, write, told)

    async def propose_along(self, proposed: Proposed, write: WriteId) -> Made | None:
        """See `Decides.propose_along`."""
        return await self.reign.propose_once(proposed, write, along=True)

    async def _answer(self, question: Barrier) -> None:
        """Answer a question of this process. Between two groups, its image is at the place."""
        place: Place = await self.reign.attach(self)
        self.reign.detach(self)
        self._following.barriers.shown(place.point.sequence)
        self._following.barriers.answered(question.id, place.point.sequence)

    async def _keep_beating(self) -> None:
        while True:
            now = trio.current_time()
            self.reign.require_reigning()
            self._following.proof.reigned(now)
            self._following.renewed.set()
            try:
                await self._files.run_urgent(self._beat.advance)
            except OSError as failed:
                self._cause = failed
                self.reign.close()
                return
            await trio.sleep(beat_seconds(self._timeout))

    async def _until_ended(self, work: Callable[[], Awaitable[None]]) -> None:
        """The end of the reign reaches each task where it asks. The committer says why."""
        try:
            await work()
        except StoreUnavailable:
            await self._ended.wait()
