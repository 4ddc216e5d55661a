"""What Spark calls to write: `write` in each task, `commit` or `abort` in its planner, for a batch and for a stream.

Each attempt of a task that has rows opens its own transaction in the batch's group, and reports its id when all rows
are stored. `commit` names the transactions whose reports Spark took. One decision commits these and aborts all others:
those of attempts that failed, were lost, or were slower than another attempt of the same task. A batch that is already
committed is not written again. Its tasks only compute the fingerprint of their rows, by which the decision recognises
the batch (`fingerprint.py`).

Spark makes the objects in a planning process, pickles them, and uses them in executors. So they hold options and no
connection. For a stream Spark makes every call on a fresh object, so `commit` knows only what tasks reported.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidewire.protocol.coordination import TransactionId
from tidewire.protocol.errors import ProtocolViolation
from tidewire.spark import encoding
from tidewire.spark.brokers import Brokers
from tidewire.spark.checkpoints import query_of
from tidewire.spark.columns import FrameColumns, column, find_columns
from tidewire.spark.committing import CommitGroup, abort, abort_one, commit
from tidewire.spark.coordinating import Coordinator
from tidewire.spark.encoding import Rows
from tidewire.spark.errors import UnwritableRow
from tidewire.spark.fingerprint import NOTHING, Fingerprint, fingerprint
from tidewire.spark.one_sentence import one_sentence
from tidewire.spark.persisting import persistently
from tidewire.spark.pyspark_versions import STREAM_ARROW_SINCE, version
from tidewire.spark.values import Values, values_of
from tidewire.spark.worker_memory import settle
from tidewire.spark.write_options import WriteOptions, check_topic
from tidewire.spark.writing import Attempt

if TYPE_CHECKING or version() >= STREAM_ARROW_SINCE:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 gives Arrow batches to every `DataSourceArrowWriter`, and has no class for a stream's."""


_log: Final = logging.getLogger(__name__)

ENCODED_BYTES_MAX: Final = 32 * 1024 * 1024
"""The most bytes of the rows that are encoded at once; a single larger row is encoded all the same."""

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a stream's tasks, which give the query and the micro-batch."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's report."""

    group: CommitGroup
    transaction: TransactionId | None
    """None when it had no rows, or the batch was already committed."""
    is_late: bool = False
    """Whether it had rows, and the batch was already committed."""
    rows: Fingerprint = NOTHING
    """The fingerprint of all its rows."""


class RowWriting:
    """Writes one task's rows in one transaction of a group."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Check the data frame's columns.

        Raises:
            UnwritableColumns: they do not fit into messages.
        """
        settle(makes_arrays=False)
        self._options = options
        self._schema = schema
        self._columns: FrameColumns = find_columns(schema, topic_is_given=options.topic is not None)
        self._values()

    def _values(self) -> Values:
        return values_of(self._options.form, self._schema.fields[self._columns.value].dataType)

    def write(self, group: CommitGroup, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows. On return they are stored, and their transaction is open.

        Raises:
            TidewireError: some are not stored, or that is unknown. The transaction is aborted if possible.
        """
        settle(makes_arrays=True)
        # A task without rows makes no request.
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return Written(group, None)
        with ExitStack() as stack:
            brokers, coordinator, transaction = self._begin(group)
            stack.enter_context(brokers)
            if transaction is None:
                return Written(group, None, is_late=True, rows=self._write(None, group, first, batches))
            try:
                attempt = Attempt(brokers, coordinator, transaction, self._values().declared)
                written = self._write(attempt, group, first, batches)
            except Exception:
                stack.close()
                abort_one(self._options, transaction)
                raise
        return Written(group, transaction, rows=written)

    def _begin(self, group: CommitGroup) -> tuple[Brokers, Coordinator, TransactionId | None]:
        # Without a transaction nothing is in doubt. One whose answer was lost ends by its timeout.
        timeout_ms = round(self._options.transaction_timeout_seconds * 1000)

        def ask() -> tuple[Brokers, Coordinator, TransactionId | None]:
            brokers = Brokers(self._options)
            try:
                coordinator = Coordinator(brokers)
                return brokers, coordinator, coordinator.new_transaction(group.on_the_wire, timeout_ms)
            except BaseException:
                brokers.close()
                raise

        return persistently(ask, self._options.operation_timeout_seconds)

    def _write(
        self, attempt: Attempt | None, group: CommitGroup, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]
    ) -> Fingerprint:
        """Encode all rows, and write them if there is an attempt. Returns their fingerprint."""
        values = self._values()
        written = NOTHING
        for batch in chain([first], others):
            for topic, rows in self._encoded(values, batch):
                if attempt is not None:
                    attempt.write(topic, rows)
                # A batch that is written once needs no fingerprint, because nobody asks for it again.
                if not group.once:
                    written += fingerprint(topic, rows)
        if attempt is not None:
            attempt.finish()
            attempt.leave()
        return written

    def _encoded(self, values: Values, batch: pa.RecordBatch) -> Iterator[tuple[str, Rows]]:
        if batch.num_rows > 1 and batch.nbytes > ENCODED_BYTES_MAX:
            middle = batch.num_rows // 2
            yield from self._encoded(values, batch.slice(0, middle))
            yield from self._encoded(values, batch.slice(middle))
            return
        yield from self._by_topic(batch, self._encode(values, batch))

    def _encode(self, values: Values, batch: pa.RecordBatch) -> Rows:
        places = self._columns
        value = column(batch, places.value)
        return encoding.encode(
            encoding.Columns(
                values.encode(value),
                column(batch, places.key),
                column(batch, places.event_time),
                column(batch, places.properties),
            )
        )

    def _by_topic(self, batch: pa.RecordBatch, rows: Rows) -> Iterator[tuple[str, Rows]]:
        if self._options.topic is not None:
            yield self._options.topic, rows
            return
        topics = column(batch, self._columns.topic)
        assert topics is not None, "checked with the data frame's columns"
        for topic in topics.unique().to_pylist():
            if topic is None:
                raise UnwritableRow("a row's topic is null, so the row has no target")
            wrong = check_topic(topic)
            if wrong is not None:
                raise UnwritableRow(f"a row's topic: {wrong}")
            own = pc.equal(topics, topic).to_numpy(zero_copy_only=False)
            yield topic, rows if own.all() else rows.select(own.nonzero()[0])


class TidewireWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Take checked options.

        Raises:
            UnwritableColumns: see `RowWriting`.
        """
        self._options = options
        self._writing = RowWriting(options, schema)
        application, version = options.txn_app_id, options.txn_version
        # Spark pickles this object, so tasks and commit have the same one.
        self._group: Final = (
            CommitGroup(uuid.uuid4().hex, 0, once=True)
            if application is None or version is None
            else CommitGroup(application, version)
        )

    @one_sentence()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store a task's rows.

        Raises:
            TidewireError: see `RowWriting.write`.
        """
        return self._writing.write(self._group, iterator)

    @one_sentence()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make exactly these tasks' rows visible, at once; durable on return.

        Raises:
            CommitFailed: they are not committed, or no broker answered whether they are.
        """
        winners = [*self._options.also_commit, *_winners(self._group, messages)]
        commit(self._options, self._group, winners, rows=None if self._group.once else _rows(messages))

    @one_sentence()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard all rows."""
        abort(self._options, self._group)


class TidewireStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream's micro-batches."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Take checked options.

        Raises:
            UnwritableColumns: see `RowWriting`.
        """
        self._options = options
        self._writing = RowWriting(options, schema)

    @one_sentence()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store a task's rows.

        Raises:
            TidewireError: see `RowWriting.write`.
        """
        return self._writing.write(group_of_task(self._options.txn_app_id), iterator)

    @one_sentence()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make exactly these tasks' rows visible, at once, unless the micro-batch is already committed; durable.

        Raises:
            CommitFailed: they are not committed, or no broker answered whether they are.
        """
        group = _reported(messages, batchId)
        # Without a report, no task has written anything, and the query is unknown.
        if group is not None:
            commit(self._options, group, _winners(group, messages), rows=_rows(messages))

    @one_sentence()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard all rows, unless the micro-batch is committed. Spark may try it again."""
        group = _reported(messages, batchId)
        named = self._options.txn_app_id or query_of(self._options.checkpoint)
        if group is not None:
            abort(self._options, group)
        elif named is not None:
            abort(self._options, CommitGroup(named, batchId))
        else:
            _log.warning(
                "micro-batch %d is aborted before a task has reported its query, so the sink cannot abort the"
                " transactions of killed tasks: they hold readers back until the query runs again, or"
                " transaction_timeout_seconds have passed; to avoid this, set txn_app_id",
                batchId,
            )


def _reported(messages: Sequence[WriterCommitMessage | None], batch: int) -> CommitGroup | None:
    """The micro-batch's group; None when no task has reported, because only tasks know the query's id."""
    groups = {message.group for message in messages if isinstance(message, Written)}
    if len(groups) > 1 or any(group.batch != batch for group in groups):
        raise ProtocolViolation(f"tasks of micro-batch {batch} report {', '.join(sorted(map(str, groups)))}")
    return next(iter(groups), None)


def group_of_task(application: str | None) -> CommitGroup:
    """The group that a stream's task writes for.

    Raises:
        ProtocolViolation: Spark does not give the query and the micro-batch.
    """
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    if not query or not batch:
        raise ProtocolViolation(f"this Spark does not tell a task its {QUERY_ID} and {BATCH_ID}; pyspark 4.0 to 4.3 do")
    # A query that lost its checkpoint gets a new id and numbers its batches from 0 again.
    return CommitGroup(application, int(batch), origin=query) if application else CommitGroup(query, int(batch))


def _rows(messages: Sequence[WriterCommitMessage | None]) -> str:
    """The fingerprint of what all tasks together have written, or would have written."""
    return str(sum((message.rows for message in messages if isinstance(message, Written)), NOTHING))


def _winners(group: CommitGroup, messages: Sequence[WriterCommitMessage | None]) -> list[TransactionId]:
    reports = [message for message in messages if isinstance(message, Written)]
    if any(report.is_late for report in reports):
        # Normal after a restart. The log helps users who miss the rows.
        _log.warning("%s is already committed, so this run does not write it again", group)
    return [report.transaction for report in reports if report.transaction is not None]
