"""What Spark 4.2 and newer call to read topics as a stream, with limits and with a stop at what is there."""

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidewire.spark.limits import Limit
from tidewire.spark.offsets import decode, encode
from tidewire.spark.one_sentence import one_sentence
from tidewire.spark.streaming import StreamReading


class TidewireStreamReader(StreamReading, SupportsTriggerAvailableNow):
    """See the module's docstring."""

    @one_sentence()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - these names are Spark's
        """Stop at what is readable now."""
        self._plans.stop_at_present()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit in the options."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    @one_sentence()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` when there is nothing to read."""
        return encode(self._plans.next(decode(start), self._limit(limit)))

    @one_sentence()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress: the end of a micro-batch without limits, and the lag."""
        return self._plans.report()

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadMaxRows):
            # Spark passes one limit. If that is the options' own, their second limit applies, too.
            return Limit(limit.max_rows, self._options.bytes_max if limit == self.getDefaultReadLimit() else None)
        if isinstance(limit, ReadMaxBytes):
            return Limit(None, limit.max_bytes)
        return Limit()
