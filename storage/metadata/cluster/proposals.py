"""What waits for the committer of the embedded store: proposals, and requests for a snapshot."""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from storage.errors import fresh
from storage.files import DiskFull
from storage.metadata.cluster.answers import made_in_steps
from storage.metadata.delta import Delta
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.proposed import Commit, NameSnapshot, Proposed, decide
from storage.metadata.steps import Steps
from storage.metadata.store import Committed, MetadataError, SnapshotTaken, StoreFull, StoreUnavailable
from storage.signal import Signal

PROPOSALS_WAITING_MAX: Final = 4096
"""Proposals that wait for the committer. Further writers wait until it has taken some."""

ALONG_SECONDS_MAX: Final = 0.02
"""How long a change set that no caller waits for is held back until it can share a group with another one."""

ANSWERED_BYTES: Final = 128
"""More than the outcome of a numbered write adds to its change set, unless its sequence numbers have gaps."""


Told = Callable[[Made | MetadataError], None]
"""Gets the outcome of a numbered write. It must not block or raise."""


class WriterLost(StoreUnavailable):
    """The session of the writer's link has ended, and so the outcomes of its writes are forgotten."""

    def __init__(self, write: WriteId) -> None:
        super().__init__(f"session {write.session} has ended, so its write {write.number} may have been made before")


class WantedSnapshot:
    """A snapshot that a caller of `take_snapshot` waits for."""

    __slots__ = ("refused", "settled", "taken")

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.refused: StoreFull | None = None
        self.taken: SnapshotTaken | None = None


class Proposal:
    """A request of a writer, and its answer once that is durable."""

    __slots__ = ("_error", "_listeners", "_result", "_tasks", "made", "proposed", "size", "write")

    def __init__(self, proposed: Proposed | NameSnapshot, write: WriteId | None = None) -> None:
        self.proposed = proposed
        self.write = write
        """Which write it is; None if it is never repeated."""
        self.size = proposed.size if write is None else proposed.size + ANSWERED_BYTES
        self.made: Made
        """The outcome of a numbered write that was made."""
        self._result: Committed
        self._error: MetadataError | None = None
        self._tasks: list[trio.lowlevel.Task] = []
        self._listeners: list[Told] = []

    def judge(self, delta: Delta) -> Steps[None]:
        """Decide it, without telling the caller yet. The outcome of a numbered write becomes part of its change set."""
        try:
            if self.write is not None and not delta.is_open(self.write.session):
                raise WriterLost(self.write)
            decided = len(delta.change_sets)
            self._result = yield from decide(self.proposed, delta)
        except MetadataError as refusal:
            self._error = refusal
            return
        if self.write is not None:
            ops = self.proposed.ops if isinstance(self.proposed, Commit) else ()
            self.made = yield from made_in_steps(ops, self._result)
            if len(delta.change_sets) > decided:
                delta.answer(self.write, self.made)

    async def answered(self) -> Committed:
        """Wait for the answer. If the wait is cancelled, the proposal still stands and its outcome is unknown.

        Several callers may wait, but nobody once the answer was given.
        """
        task = trio.lowlevel.current_task()
        self._tasks.append(task)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._tasks.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if self._error is not None:
            raise fresh(self._error)
        return self._result

    def attach(self, told: Told) -> None:
        """Tell `told` the answer of a numbered write, without a task that waits for it."""
        self._listeners.append(told)

    @property
    def is_awaited(self) -> bool:
        """Whether anybody may still learn the outcome: a waiting caller, or whoever repeats a numbered write."""
        return bool(self._tasks) or self.write is not None

    def answer(self, error: MetadataError | None = None) -> None:
        """Tell the callers that still wait. With an error, it was refused, or the outcome is unknown."""
        if error is not None:
            self._error = error
        for task in self._tasks:
            trio.lowlevel.reschedule(task)
        self._tasks.clear()
        for told in self._listeners:
            told(self.made if self._error is None else self._error)


class ProposalQueue:
    """The proposals that wait for the committer, which `wake` wakes. It holds at most PROPOSALS_WAITING_MAX."""

    __slots__ = ("_company", "_is_closed", "_room", "_waiting", "_wake")

    def __init__(self, wake: Signal) -> None:
        self._waiting: deque[Proposal] = deque()
        self._room = trio.lowlevel.ParkingLot()
        self._company = trio.lowlevel.ParkingLot()
        """Change sets that wait to share the group of the next proposal."""
        self._wake = wake
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait_for_room(self) -> None:
        """Return when a proposal may be put here, or when it is closed. A caller that puts one does so at once."""
        while len(self._waiting) >= PROPOSALS_WAITING_MAX and not self._is_closed:
            await self._room.park()

    async def wait_for_company(self) -> None:
        """Hold back a change set that no caller waits for, up to ALONG_SECONDS_MAX, until another proposal waits."""
        if not self._waiting and not self._is_closed:
            with trio.move_on_after(ALONG_SECONDS_MAX):
                await self._company.park()

    def put(self, proposal: Proposal) -> None:
        """Add one behind the others."""
        self._waiting.append(proposal)
        self._wake.set()
        if self._company:
            self._company.unpark_all()

    def take(self) -> Proposal:
        """The first one. The caller then calls `taken`."""
        return self._waiting.popleft()

    def taken(self) -> None:
        """Tell whoever waits for room."""
        if self._room:
            self._room.unpark_all()

    def close(self) -> None:
        """Nobody waits for room or company any more, because nothing is put here."""
        self._is_closed = True
        self._room.unpark_all()
        self._company.unpark_all()


def no_space(full: DiskFull) -> StoreFull:
    """The refusal for a full disk."""
    error = StoreFull(f"the disk is full: {full.filename} cannot grow")
    error.__cause__ = full
    return error
