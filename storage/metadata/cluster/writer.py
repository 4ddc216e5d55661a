"""The writes of a follower: numbered, sent to the controller, and sent again on each new link until they are answered.

The controller decides each number once, however often it arrives (`outcomes`). So a lost answer, a cut link and a
failover cost a repeat, and no caller learns of them. The identity behind the numbers is the session of the link. If
the controller has ended that session meanwhile, it has forgotten the outcomes. Then writes that were sent have an
unknown outcome, and the others are numbered anew.

| the caller of a write             | not sent yet             | sent                                              |
|-----------------------------------|--------------------------|---------------------------------------------------|
| waits                             | sent when its turn comes | sent again on each new link                       |
| was cancelled, or waited too long | taken back: not made     | not sent again; made if the controller has it     |
| the same, and it opens a session  | taken back: not made     | sent until it is answered, then that session ends |
| the same, and it ends sessions    | sent when its turn comes | sent until it is answered                         |

A session that nobody knows of would live as long as this process, and so would a session whose end was given up.

Bounds: `outcomes.WINDOW` writes, and CHANGE_SET_BYTES_MAX of change sets, as the controller demands.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, Protocol

import trio

from storage.errors import fresh
from storage.metadata.cluster.answers import Outcome, error_of, refusal_of
from storage.metadata.cluster.arrivals import Unanswered
from storage.metadata.cluster.barriers import ANSWER_SECONDS_MAX
from storage.metadata.cluster.frames import SESSIONS_MAX
from storage.metadata.cluster.messages import End, Open, Write
from storage.metadata.cluster.ops_codec import CHANGE_SET_BYTES_MAX, parts, require_sendable
from storage.metadata.cluster.proposals import Told
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.proposed import Commit, EndSessions, OpenSession, Proposed
from storage.metadata.store import MetadataError, StoreFull, StoreUnavailable
from storage.signal import Signal

Send = Callable[[Write | Open | End], Awaitable[None]]


class Decides(Protocol):
    """This process as the controller (`Leading`)."""

    async def submit(self, proposed: Proposed, write: WriteId, told: Told) -> None:
        """See `Reign.submit`."""

    async def propose_along(self, proposed: Proposed, write: WriteId) -> Made | None:
        """See `Reign.propose_once`, for a write that may be held back for a moment."""


_NO_ANSWER: Final = (
    f"unknown whether it was made: the metadata controller gave no answer for {ANSWER_SECONDS_MAX:g} s; read again"
)
_NOT_SENT: Final = f"not made: there was no metadata controller to send it to for {ANSWER_SECONDS_MAX:g} s; try again"
_SESSION_GONE: Final = "unknown whether it was made: the session of its writer's link has ended; read again"


class _Write:
    """A write without an answer."""

    __slots__ = ("along", "answered", "error", "is_awaited", "links", "made", "number", "proposed", "sent_at", "since")

    def __init__(self, proposed: Proposed, *, along: bool, is_awaited: bool) -> None:
        self.proposed = proposed
        self.since = trio.current_time()
        """When it was proposed."""
        self.along = along
        self.number = 0
        """Its number for the present session; 0 before it has one."""
        self.is_awaited = is_awaited
        """Whether a caller waits."""
        self.links = 0
        """Over how many links it was sent, in whole or in part."""
        self.sent_at = 0.0
        """When it was first sent."""
        self.answered = trio.Event()
        self.made: Made | None = None
        self.error: MetadataError | None = None


class Writer:
    """The writes of one process."""

    def __init__(self) -> None:
        self.repeated = 0
        """How often a write was sent again."""
        self._session = 0
        """The session of the link, which identifies this writer; 0 before the first link."""
        self._unanswered: Unanswered[_Write] = Unanswered()
        self._bytes = 0
        """The size of the change sets in it."""
        self._to_send: deque[_Write] = deque()
        """What goes next on the present link."""
        self._to_end: dict[int, None] = {}
        """Sessions to end that no write names yet."""
        self._entering = trio.StrictFIFOLock()
        """Its holder waits for room, so that a large change set has its turn."""
        self._room = trio.lowlevel.ParkingLot()
        self._wake = Signal()
        self._closed: MetadataError | None = None

    def __len__(self) -> int:
        """How many callers wait."""
        return sum(write.is_awaited for _number, write in self._unanswered.again())

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest write for which a caller waits has had no answer; 0 if there is none."""
        waiting = (write.since for _number, write in self._unanswered.again() if write.is_awaited)
        since = min(waiting, default=None)
        return 0.0 if since is None else trio.current_time() - since

    async def propose(self, proposed: Proposed, *, along: bool = False) -> Made:
        """Have it decided, exactly once. Durable on return, and then this process's image holds it.

        `along`: the controller may hold it back for a moment (`MetadataStore.commit_along`).

        Raises:
            Conflict, SessionLost, InvalidOperation, StoreFull: the controller refused it. The image holds why.
            ChangeSetTooLarge: it is above what one broker may send to another. Nothing was sent.
            StoreUnavailable: unknown whether it was made, because there was no answer for ANSWER_SECONDS_MAX.
        """
        if isinstance(proposed, Commit):
            require_sendable(proposed.ops, proposed.size)
        return await self._have_decided(_Write(proposed, along=along, is_awaited=True))

    async def open_session(self, opening: OpenSession) -> tuple[int, float]:
        """As `propose`. Returns the session and when its opening was first sent, from which its own deadline counts."""
        write = _Write(opening, along=False, is_awaited=True)
        made = await self._have_decided(write)
        return made.revision, write.sent_at

    async def _have_decided(self, write: _Write) -> Made:
        try:
            with trio.move_on_after(ANSWER_SECONDS_MAX):
                await self._enter(write)
                await write.answered.wait()
        except trio.Cancelled:
            if write.made is not None and isinstance(write.proposed, OpenSession):
                # The answer came while the cancellation was on its way.
                self.end_sessions((write.made.revision,))
            raise
        finally:
            self._leave(write)
        if write.error is not None:
            raise fresh(write.error)
        if write.made is None:
            raise StoreUnavailable(_NO_ANSWER if write.links else _NOT_SENT)
        return write.made

    def end_sessions(self, sessions: Iterable[int]) -> None:
        """Have sessions ended, as soon as there is a controller. Nobody waits for it."""
        if self._closed is None:
            self._to_end.update(dict.fromkeys(sessions))
            self._add_ends()

    async def send(self, session: int, send: Send) -> None:
        """Send the writes over a new link with this session, until cancelled: first those without an answer, in order.

        Raises:
            LinkLost: the link has ended.
        """

        async def hand_over(write: _Write) -> None:
            for message in self._messages(write):
                await send(message)

        await self._hand_over_all(session, hand_over)

    async def decide(self, session: int, controller: Decides) -> None:
        """While this process is the controller: have the writes decided here, in the same order as `send`.

        Returns only when it is cancelled. What has no answer then goes to the next controller.
        """
        async with trio.open_nursery() as nursery:

            async def hand_over(write: _Write) -> None:
                numbered = WriteId(session, write.number, self._unanswered.answered_below)
                if write.along:
                    # It may wait, and what comes behind it does not. Their order does not matter.
                    nursery.start_soon(self._decide_along, write, numbered, controller)
                    return
                with suppress(StoreUnavailable):
                    await controller.submit(write.proposed, numbered, partial(self._decided, numbered))

            await self._hand_over_all(session, hand_over)

    async def _hand_over_all(self, session: int, hand_over: Callable[[_Write], Awaitable[None]]) -> None:
        self._begin(session)
        while True:
            while self._to_send:
                write = self._to_send.popleft()
                if write.answered.is_set():
                    continue
                if write.links:
                    self.repeated += 1
                else:
                    write.sent_at = trio.current_time()
                write.links += 1
                await hand_over(write)
            await self._wake.wait()

    async def _decide_along(self, write: _Write, numbered: WriteId, controller: Decides) -> None:
        try:
            made = await controller.propose_along(write.proposed, numbered)
        except MetadataError as error:
            self._decided(numbered, error)
        else:
            if made is not None:
                self._decided(numbered, made)

    def _decided(self, numbered: WriteId, outcome: Made | MetadataError) -> None:
        """The outcome of a write that was decided here."""
        if numbered.session != self._session:
            return
        if isinstance(outcome, Made):
            self.answered(numbered.number, outcome)
        elif isinstance(outcome, StoreFull) or not isinstance(outcome, StoreUnavailable):
            self.answered(numbered.number, refusal_of(outcome))
        # Else it is unknown, so the next controller is asked.

    def answered(self, number: int, outcome: Outcome) -> None:
        """The controller has answered. The image holds the state behind that. Ignored if the answer came before."""
        write = self._unanswered.answered(number)
        if write is None:
            return
        if isinstance(outcome, Made):
            write.made = outcome
            if isinstance(write.proposed, OpenSession) and not write.is_awaited:
                self.end_sessions((outcome.revision,))
        else:
            write.error = error_of(outcome)
        self._settle(write)

    def close(self, error: MetadataError) -> None:
        """Answer everything that waits with `error`, and accept nothing more."""
        self._closed = error
        for _number, write in self._unanswered.again():
            self._fail(write, error)
        self._to_send.clear()
        self._to_end.clear()
        self._room.unpark_all()

    async def _enter(self, write: _Write) -> None:
        """Wait for room, then give the write its number."""
        size = write.proposed.size
        if self._entering.locked() or not self._has_room(size):
            async with self._entering:
                while self._closed is None and not self._has_room(size):
                    await self._room.park()
        if self._closed is not None:
            raise fresh(self._closed)
        self._add(write)

    def _has_room(self, size: int) -> bool:
        fits = not self._bytes or self._bytes + size <= CHANGE_SET_BYTES_MAX
        return fits and self._unanswered.has_room

    def _leave(self, write: _Write) -> None:
        """Its caller goes. If it has no answer, only what must be done is still done."""
        if write.answered.is_set() or not write.number:
            return
        write.is_awaited = False
        if not write.links and not isinstance(write.proposed, EndSessions):
            self._take_out(write)

    def _add(self, write: _Write) -> None:
        write.number = self._unanswered.add(write)
        self._bytes += write.proposed.size
        self._to_send.append(write)
        self._wake.set()

    def _add_ends(self) -> None:
        while self._to_end and self._unanswered.has_room:
            sessions = tuple(islice(self._to_end, SESSIONS_MAX))
            for session in sessions:
                del self._to_end[session]
            self._add(_Write(EndSessions(sessions), along=False, is_awaited=False))

    def _take_out(self, write: _Write) -> None:
        self._unanswered.answered(write.number)
        self._settle(write)

    def _fail(self, write: _Write, error: MetadataError) -> None:
        write.error = error
        self._take_out(write)

    def _settle(self, write: _Write) -> None:
        """It is no longer among the unanswered ones."""
        self._bytes -= write.proposed.size
        write.answered.set()
        self._room.unpark_all()
        self._add_ends()

    def _begin(self, session: int) -> None:
        """Choose what a new link sends: everything that is still to be done."""
        is_other_writer = session != self._session
        self._session = session
        self._to_send.clear()
        for _number, write in self._unanswered.again():
            must_be_done = isinstance(write.proposed, EndSessions)
            if is_other_writer and write.links and not must_be_done:
                # It was sent under the session that has ended. So has every session that it may have opened.
                self._fail(write, StoreUnavailable(_SESSION_GONE))
            elif write.links and not write.is_awaited and isinstance(write.proposed, Commit):
                self._take_out(write)
        again = [write for _number, write in self._unanswered.again()]
        if is_other_writer:
            self._unanswered = Unanswered()
            for write in again:
                write.number = self._unanswered.add(write)
        self._to_send = deque(again)

    def _messages(self, write: _Write) -> Iterator[Write | Open | End]:
        number, below, proposed = write.number, self._unanswered.answered_below, write.proposed
        if isinstance(proposed, OpenSession):
            yield Open(number, below, proposed.timeout_ms)
        elif isinstance(proposed, EndSessions):
            yield End(number, below, proposed)
        else:
            # One part ahead, because the last one says that it is the last.
            encoded = parts(proposed.ops)
            part = next(encoded)
            for following in encoded:
                yield Write(number, below, write.along, False, part)
                part = following
            yield Write(number, below, write.along, True, part)
