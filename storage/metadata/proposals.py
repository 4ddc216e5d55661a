"""What waits for the embedded store's committer: proposals, requests for a snapshot, and snapshots to name."""

import trio

from storage.errors import fresh
from storage.files import DiskFull
from storage.metadata.batches import Point
from storage.metadata.delta import Delta
from storage.metadata.proposed import Proposed, decide
from storage.metadata.steps import Steps
from storage.metadata.store import Committed, MetadataError, SnapshotTaken, StoreFull


class WantedSnapshot:
    """A snapshot that a caller of `take_snapshot` waits for."""

    __slots__ = ("refused", "settled", "taken")

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.refused: StoreFull | None = None
        self.taken: SnapshotTaken | None = None


class SnapshotNaming:
    """A snapshot that is durable and waits until the log names it."""

    __slots__ = ("point", "refused", "settled")

    def __init__(self, point: Point) -> None:
        self.point = point
        self.settled = trio.Event()
        self.refused: DiskFull | None = None


class Proposal:
    """A request of a writer, and its answer once that is durable."""

    __slots__ = ("_error", "_proposed", "_result", "_task", "size")

    def __init__(self, proposed: Proposed) -> None:
        self._proposed = proposed
        self._result: Committed
        self._error: MetadataError | None = None
        self._task: trio.lowlevel.Task | None = None
        self.size = proposed.size

    def judge(self, delta: Delta) -> Steps[None]:
        """Decide it, without telling the caller yet."""
        try:
            self._result = yield from decide(self._proposed, delta)
        except MetadataError as refusal:
            self._error = refusal

    async def answered(self) -> Committed:
        """Wait for the answer, once. If the wait is cancelled, the proposal still stands and its outcome is unknown."""
        self._task = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if self._error is not None:
            raise fresh(self._error)
        return self._result

    @property
    def is_awaited(self) -> bool:
        """Whether the caller still waits. After a cancellation, nobody learns the outcome."""
        return self._task is not None

    def answer(self) -> None:
        """Tell the caller, if it still waits."""
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def fail(self, error: MetadataError) -> None:
        """Tell the caller that the outcome is unknown."""
        self._error = error
        self.answer()


def no_space(full: DiskFull) -> StoreFull:
    """The refusal for a full disk."""
    error = StoreFull(f"the disk is full: {full.filename} cannot grow")
    error.__cause__ = full
    return error
