"""What waits for the embedded store's committer: proposals, and who asked for a snapshot."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

from storage.metadata.delta import Delta
from storage.metadata.steps import Steps
from storage.metadata.store import MetadataError, SnapshotTaken, StoreFull

T = TypeVar("T")


class WantedSnapshot:
    """What somebody waits for in `take_snapshot`."""

    __slots__ = ("refused", "settled", "taken")

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.refused: StoreFull | None = None
        self.taken: SnapshotTaken | None = None


class Proposal(Generic[T]):
    """What a writer asks, and what it is told when that is durable."""

    __slots__ = ("_decide", "_error", "_result", "_task", "size")

    def __init__(self, decide: Callable[[Delta], Steps[T]], size: int) -> None:
        self._decide = decide
        self._result: T
        self._error: MetadataError | None = None
        self._task: trio.lowlevel.Task | None = None
        self.size = size

    def judge(self, delta: Delta) -> Steps[None]:
        """Decide it; nobody is told yet."""
        try:
            self._result = yield from self._decide(delta)
        except MetadataError as refusal:
            self._error = refusal

    async def answered(self) -> T:
        """Wait for the answer, once. If that is cancelled the proposal still stands: its outcome is unknown."""
        self._task = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def is_awaited(self) -> bool:
        """False once whoever asked was cancelled: what comes of it is unknown to all."""
        return self._task is not None

    def answer(self) -> None:
        """Tell who asked, if anybody still waits."""
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def fail(self, error: MetadataError) -> None:
        """Tell who asked that the outcome is unknown."""
        self._error = error
        self.answer()


class AnyProposal(Protocol):
    """A proposal to the committer, which does not care what the answer is."""

    size: int

    @property
    def is_awaited(self) -> bool:
        """See `Proposal`."""

    def judge(self, delta: Delta) -> Steps[None]:
        """See `Proposal`."""

    def answer(self) -> None:
        """See `Proposal`."""

    def fail(self, error: MetadataError) -> None:
        """See `Proposal`."""
