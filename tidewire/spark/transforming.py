"""A job that reads topics, transforms that with Spark, and writes topics, exactly once; brokers know its progress.

    job = ConsumeTransformProduce(
        spark,
        name="enrich",
        source={"service_url": "pulsar://127.0.0.1:6650", "topic": "topic://public/default/flights"},
        transform=lambda flights: flights.selectExpr("key", "upper(cast(value as string)) as value"),
        sink={"topic": "topic://public/default/shouted"},
    )
    job.run_available()  # or job.run(), until somebody calls job.stop()

Where it is in its source is a subscription of the job's name. It goes on in batches: a range of each segment is read,
transformed and written, and the range's end is acknowledged, in transactions of one group that one decision commits
(docs/design.md#transactions). So a batch's output is there exactly when its input is acknowledged, whatever dies at
whatever moment, and who begins anew asks the broker for both the subscription's place and the last batch. There is no
checkpoint folder, and other tools see the subscription's lag.

A driver takes hold of the subscription, then aborts what an earlier one left open, and then asks where it is: in this
order, so that nobody else can move it in between. Of two that run at once all the same, the group's decision lets one
win.

The transformation is called for each batch with an ordinary data frame and has no memory from batch to batch: what
Spark remembers for a stream (windows, joins of streams, duplicates) lives in checkpoints, so take a stream for those.
"""

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from tidewire.protocol.coordination import TransactionId
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition
from tidewire.protocol.topic_names import SCALABLE
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.errors import InvalidOption, SubscriptionTaken
from tidewire.spark.job_progress import Batch, JobProgress
from tidewire.spark.options import READ_NAMES, ReadOptions, Use, by_name
from tidewire.spark.persisting import passes, persistently
from tidewire.spark.positions import EARLIEST_START, LATEST_START
from tidewire.spark.write_options import WRITE_NAMES, WriteOptions

_PLANNED: Final = ("topic", "topic_pattern", "starting_position", "max_rows_per_trigger", "max_bytes_per_trigger")
"""Options of the source that say what a batch has; it is read with all others."""
_OURS: Final = ("txn_app_id", "txn_version", "also_commit")
"""Options of the sink that the job sets."""

_log: Final = logging.getLogger(__name__)


class ConsumeTransformProduce:
    """See the module's docstring."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        name: str,
        source: Mapping[str, str],
        transform: Callable[[DataFrame], DataFrame],
        sink: Mapping[str, str],
    ) -> None:
        """Check the options; no broker is asked yet.

        Args:
            spark: runs the batches.
            name: of the job: its subscription's, and of its batches. One driver at a time runs a job.
            source: options for reading a stream (options.py) of scalable topics. `starting_position`, earliest unless
                it says latest, is for the first time that the job is run. The batches' bounds are
                `max_rows_per_trigger` and `max_bytes_per_trigger`; without them a batch is all that there is.
            transform: makes of a batch's rows those that are written; without memory of other batches.
            sink: options for writing a batch (write_options.py). `service_url` is the source's unless it is given; it
                has to be of the same brokers.

        Raises:
            InvalidOption: an option is unknown, missing, wrong, or not for a job.
        """
        self._spark = spark
        self._name = name
        self._transform = transform
        self._source, self._start = _source_options(source)
        given = by_name(source, READ_NAMES)
        self._reading: Final = {option: text for option, text in given.items() if option not in _PLANNED}
        self._writing: Final = {"service_url": given["service_url"], **_sink_options(sink)}
        self._sink = WriteOptions.parse(self._writing, Use.BATCH)
        self._lock = threading.Lock()
        self._is_stopping = False
        self._wake: socket.socket | None = None

    def run_available(self) -> int:
        """Process all that can be read now, and return how many batches that took.

        Raises:
            SubscriptionTaken: another driver runs the job.
            TidewireError, and what Spark and the transformation raise: nothing of the batch that failed is written, or
                all of it, if nobody answered its commit; whoever runs the job again goes on where it is.
        """
        with self._progress() as progress:
            persistently(progress.stop_at_present, self._source.operation_timeout_seconds)
            done = 0
            while not self._is_stopping and self._run_batch(progress):
                done += 1
            return done

    def run(self) -> None:
        """Process what there is and what comes, until `stop` is called. Waits for brokers' pushes, and asks nothing.

        Raises:
            SubscriptionTaken, TidewireError, others: as `run_available`.
        """
        with self._progress() as progress, self._waking() as woken:
            while not self._is_stopping:
                if not self._run_batch(progress):
                    self._wait(progress, woken)

    def stop(self) -> None:
        """Let `run` return when the batch that is being processed is done. From any thread; for good."""
        with self._lock:
            self._is_stopping = True
            if self._wake is not None:
                self._wake.send(b"\0")

    def _run_batch(self, progress: JobProgress) -> bool:
        """One batch; False when there is nothing to read."""
        timeout_seconds = self._source.operation_timeout_seconds
        begun = persistently(progress.begin, timeout_seconds, _may_pass)
        if begun is None:
            return False
        batch, transaction = begun
        try:
            rows = self._transform(self._read(batch))
            self._write(rows, batch, transaction)
        except BaseException:
            progress.give_up(batch)
            raise
        progress.committed(batch)
        _log.info("job %r has committed batch %d", self._name, batch.number)
        return True

    def _read(self, batch: Batch) -> DataFrame:
        return (
            self._spark.read.format("tidewire")
            .options(**self._reading)
            .option("topic", batch.topics)
            .option("starting_position", batch.starting_position)
            .option("ending_position", batch.ending_position)
            .load()
        )

    def _write(self, rows: DataFrame, batch: Batch, transaction: TransactionId) -> None:
        (
            rows.write.format("tidewire")
            .options(**self._writing)
            .option("txn_app_id", batch.application)
            .option("txn_version", str(batch.number))
            .option("also_commit", "{}:{}".format(*transaction))
            .mode("append")
            .save()
        )

    @contextmanager
    def _progress(self) -> Iterator[JobProgress]:
        # Writing looks formats up in the session that is active in its thread, and this is what makes one so.
        self._spark.createDataFrame([], "nothing int")
        progress = JobProgress(self._name, self._source, self._sink, self._start)
        try:
            yield progress
        finally:
            progress.close()

    @contextmanager
    def _waking(self) -> Iterator[socket.socket]:
        woken, wake = socket.socketpair()
        with woken, wake:
            with self._lock:
                self._wake = wake
            try:
                yield woken
            finally:
                with self._lock:
                    self._wake = None

    def _wait(self, progress: JobProgress, woken: socket.socket) -> None:
        """Return when there may be more to read, or less to hold, or somebody wants to stop."""
        while not self._is_stopping:
            try:
                if progress.arrived():
                    return
            except TidewireError as error:
                if not passes(error):
                    raise
                progress.reset()
                return
            waited_for: list[socket.socket | BlockingConnection] = [woken, *progress.connections]
            with selectors.DefaultSelector() as selector:
                for readable in waited_for:
                    selector.register(readable, selectors.EVENT_READ)
                selector.select()


def _may_pass(error: TidewireError) -> bool:
    # Of a driver that died with its machine, brokers know after a while.
    return isinstance(error, SubscriptionTaken) or passes(error)


def _source_options(given: Mapping[str, str]) -> tuple[ReadOptions, EntryPosition]:
    """The options of the source, and where a job begins that was never run.

    Raises:
        InvalidOption: one is wrong, or not for a job.
    """
    options = ReadOptions.parse(given, Use.STREAM)
    if options.subscription is not None:
        raise InvalidOption("option subscription: a job's subscription has the job's name")
    if options.uncommitted:
        raise InvalidOption("option isolation: a job always reads committed messages")
    wrong = [topic for topic in options.topics if not topic.startswith(SCALABLE)]
    if wrong:
        raise InvalidOption(f"option topic: {wrong[0]} takes no transactions; a job reads {SCALABLE} topics")
    if "starting_position" not in by_name(given, READ_NAMES):
        return options, EARLIEST
    starts = {EARLIEST_START: EARLIEST, LATEST_START: LATEST}
    if options.starting not in starts:
        raise InvalidOption("option starting_position: a new job must begin at earliest or latest")
    return options, starts[options.starting]


def _sink_options(given: Mapping[str, str]) -> dict[str, str]:
    options = by_name(given, WRITE_NAMES, others=READ_NAMES)
    for name in _OURS:
        if name in options:
            raise InvalidOption(f"option {name} is set by the job")
    return options
