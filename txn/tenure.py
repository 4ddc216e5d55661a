"""The time in which this broker owns a segment, as the task sees it that removes op records there.

Publishes and acknowledgements may learn that another broker owns the segment, or that a write's outcome is unknown.
They end the tenure. The task then ends with their error, and whoever runs it closes the segment.
"""

from collections.abc import Awaitable, Callable

import structlog
import trio

from storage.errors import SPACE_RETRY_SECONDS, fresh
from storage.metadata.store import StoreFull
from storage.signal import Signal
from txn.errors import TxnError

log = structlog.get_logger(__name__)


class Tenure:
    """One owner's tenure of one segment."""

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self._end: TxnError | None = None
        self._settling: trio.CancelScope | None = None
        """Set while the task settles."""
        self.due = Signal()
        """Set it when there is something to remove."""

    @property
    def has_ended(self) -> bool:
        """Whether this owner has lost the segment, or may have lost it."""
        return self._end is not None

    def end(self, error: TxnError) -> TxnError:
        """End the tenure with this error, unless it has ended. Returns the error for the caller to raise."""
        self._end = self._end or error
        self.due.set()
        if self._settling is not None:
            # It may wait for space, or for acknowledgements that only the next owner can apply.
            self._settling.cancel()
        return fresh(error)

    def require(self) -> None:
        """Raise the error that ended the tenure, if it has ended.

        Another try would wait as long for the same error, and delay the closing of the segment.
        """
        if self._end is not None:
            raise fresh(self._end)

    async def repeat(self, settle: Callable[[], Awaitable[None]], wait: Callable[[], Awaitable[None]]) -> None:
        """Call `settle` after each `wait`, until the tenure ends. `settle` removes records and may be repeated.

        While the metadata store is full, it is repeated. Decisions are applied in memory, so reading goes on. The end
        of the tenure cancels it.

        Raises:
            OwnershipLost, OutcomeUnknown: the tenure has ended.
        """
        while True:
            await wait()
            self.require()
            try:
                with trio.CancelScope() as self._settling:
                    await settle()
            except StoreFull as full:
                log.warning("records of transactions cannot be removed yet", segment=self._segment, reason=str(full))
                await trio.sleep(SPACE_RETRY_SECONDS)
                self.due.set()
            finally:
                self._settling = None
            self.require()
