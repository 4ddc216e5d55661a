"""What waits for the embedded store's committer: proposals, and requests for a snapshot."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

from storage.errors import fresh
from storage.metadata.delta import Delta
from storage.metadata.steps import Steps
from storage.metadata.store import MetadataError, SnapshotTaken, StoreFull

T = TypeVar("T")


class WantedSnapshot:
    """A snapshot that a caller of `take_snapshot` waits for."""

    __slots__ = ("refused", "settled", "taken")

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.refused: StoreFull | None = None
        self.taken: SnapshotTaken | None = None


class Proposal(Generic[T]):
    """A request of a writer, and its answer once that is durable."""

    __slots__ = ("_decide", "_error", "_result", "_task", "size")

    def __init__(self, decide: Callable[[Delta], Steps[T]], size: int) -> None:
        self._decide = decide
        self._result: T
        self._error: MetadataError | None = None
        self._task: trio.lowlevel.Task | None = None
        self.size = size

    def judge(self, delta: Delta) -> Steps[None]:
        """Decide it, without telling the caller yet."""
        try:
            self._result = yield from self._decide(delta)
        except MetadataError as refusal:
            self._error = refusal

    async def answered(self) -> T:
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


class AnyProposal(Protocol):
    """A proposal as the committer sees it, whatever the type of its answer."""

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
