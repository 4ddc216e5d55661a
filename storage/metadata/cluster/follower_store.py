"""The metadata store of a broker that follows: the contract over an image that another broker's controller fills.

Reads ask the controller how far the log is, and wait for their own image. Writes are decided by the controller. Watches
and `peek` use the own image. All of them outlive a lost link. A call that gets no answer for ANSWER_SECONDS_MAX raises
StoreUnavailable.

A session ends here at its own deadline, which is never later than the controller's (`deadlines`). From then on its
owner must act as if its records were gone. So that no session stays behind without an owner, its end is also sent to
the controller. A session lives at most as long as the session of the process's link, whatever timeout it has.

It is the part of `shared_store.SharedStore` that needs no role. Whoever has it serves its `_following`, runs
`_end_overdue_sessions`, and calls `_close` at the end.
"""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Final

import structlog
import trio

from storage.metadata.batches import BEGINNING
from storage.metadata.cluster.answers import committed_in_steps
from storage.metadata.cluster.barriers import Barriers
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.following import Following
from storage.metadata.cluster.frames import SESSIONS_MAX
from storage.metadata.cluster.messages import Place
from storage.metadata.cluster.received_log import ReceivedLog
from storage.metadata.cluster.writer import Writer
from storage.metadata.image import Image
from storage.metadata.image_store import ImageStore, LocalSession
from storage.metadata.pacing import paced
from storage.metadata.proposed import Commit, EndSessions, OpenSession, Proposed
from storage.metadata.store import Committed, InvalidOperation, Op, Session, StoreStatistics, StoreUnavailable

CLOSE_SECONDS_MAX: Final = 2.0
"""How long closing may take to end the sessions. The rest end by their timeout."""

log = structlog.get_logger(__name__)

CLOSED: Final = trio.ClosedResourceError("it was closed")


class FollowerStore(ImageStore):
    """See the module's docstring."""

    def __init__(self, *, broker: str, timeout: float, random: Random) -> None:
        super().__init__(Image())
        self._log = ReceivedLog(self, self._image, Place(0, BEGINNING, 0))
        self._writer = Writer()
        self._barriers = Barriers()
        self._following = Following(
            self._log, self._writer, self._barriers, broker=broker, timeout=timeout, random=random
        )

    # ----------------------------------------------------------------------------------------------------- the contract

    async def barrier(self) -> int:
        """See `MetadataStore.barrier`.

        It sends one question to the controller, begun after the call, and shares it with the calls that came before
        the question was sent.

        Raises:
            StoreUnavailable: the controller does not answer.
        """
        await self._barriers.passed()
        await self._checkpoint()
        return self._image.revision

    async def commit_along(self, ops: Sequence[Op]) -> Committed:
        """See `MetadataStore.commit_along`. The controller holds it back."""
        return await self._decide(await self._checked(ops), along=True)

    async def open_session(self, timeout_seconds: float) -> Session:
        """See `MetadataStore.open_session`. The link keeps it alive.

        Raises:
            InvalidOperation: the timeout is not positive.
            StoreUnavailable: the controller does not answer. A session that it may have opened ends.
        """
        if not timeout_seconds > 0:
            raise InvalidOperation(f"a session timeout of {timeout_seconds} seconds")
        await self._checkpoint()
        opened, sent_at = await self._writer.open_session(OpenSession(max(1, round(timeout_seconds * 1000))))
        session = FollowerSession(self, self._following, opened, timeout_seconds, sent_at)
        # After an outage the session of the link may be as old as the first HELLO that was lost. A token tells.
        try:
            with trio.move_on_after(self._following.timeout):
                while session.has_ended and session.id in self._image.sessions:
                    await self._following.proven.park()
        except trio.Cancelled:
            self._writer.end_sessions((opened,))
            raise
        self._raise_failure()
        if session.id in self._image.sessions:
            self._sessions[session.id] = session
            self._following.renewed.set()
        else:
            session.ended.set()
        return session

    def statistics(self) -> StoreStatistics:
        """See `MetadataStore.statistics`; `extra` says what the links did."""
        return StoreStatistics(
            self._image.revision,
            len(self._image.records),
            len(self._watches),
            len(self._writer),
            {
                "links": self._following.links,
                "images": self._log.images,
                "barriers": self._barriers.asked,
                "writes_repeated": self._writer.repeated,
                "oldest_write_seconds": self._writer.oldest_seconds,
                "log_batches": self._log.place.point.sequence,
                "epoch": self._log.place.epoch,
            },
        )

    async def _decide(self, proposed: Proposed, *, along: bool = False) -> Committed:
        self._raise_failure()
        made = await self._writer.propose(proposed, along=along)
        ops = proposed.ops if isinstance(proposed, Commit) else ()
        try:
            return await paced(committed_in_steps(ops, made))
        except LinkError as malformed:
            raise StoreUnavailable(f"it was made, but the answer cannot be read: {malformed}") from malformed

    # --------------------------------------------------------------------------------------------------------- sessions

    async def _end_overdue_sessions(self) -> None:
        """End each session here at its own deadline, and have the controller end it too."""
        following = self._following
        while True:
            now = trio.current_time()
            sessions = [session for session in self._sessions.values() if isinstance(session, FollowerSession)]
            overdue = [session for session in sessions if session.deadline <= now]
            for session in overdue:
                log.warning("a session of this process was not renewed in time", session=session.id)
                del self._sessions[session.id]
                session.ended.set()
            self._writer.end_sessions(session.id for session in overdue)
            with trio.move_on_at(
                min((session.deadline for session in sessions if session.deadline > now), default=inf)
            ):
                await following.renewed.wait()

    async def _close(self) -> None:
        """End the sessions of this process if there is a controller, then the store. Shielded, and bounded."""
        with trio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
            await self._resign()
        self._end(CLOSED)

    async def _resign(self) -> None:
        if self._failure is not None or not self._following.is_linked:
            return
        # The link's own session is the last one of this process.
        sessions = (*self._sessions, self._following.session)
        try:
            for begin in range(0, len(sessions), SESSIONS_MAX):
                await self._writer.propose(EndSessions(sessions[begin : begin + SESSIONS_MAX]))
        except StoreUnavailable as unavailable:
            log.info("sessions are left to end by their timeout", reason=str(unavailable))

    def _end(self, cause: BaseException) -> None:
        super()._end(cause)
        self._writer.close(self._unavailable())
        self._barriers.close(self._unavailable())


class FollowerSession(LocalSession):
    """A session that the link keeps alive."""

    def __init__(
        self, store: FollowerStore, following: Following, session_id: int, timeout: float, sent_at: float
    ) -> None:
        super().__init__(store, session_id)
        self._following = following
        self._timeout = timeout
        self._sent_at = sent_at
        self._link_begun = following.proof.begun

    @property
    def deadline(self) -> float:
        """Until when the controller has certainly not ended it for silence, by Trio's clock."""
        following = self._following
        proven = following.proof.proven
        own = max(self._sent_at, proven) + min(self._timeout, following.timeout)
        # The controller ends it with the session of the link.
        return min(own, max(self._link_begun, proven) + following.timeout)

    @property
    def has_ended(self) -> bool:
        """See `Session.has_ended`. Looks at the clock too, because this process may just have been stopped."""
        return self.ended.is_set() or trio.current_time() >= self.deadline
