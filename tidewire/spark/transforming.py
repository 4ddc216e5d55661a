"""A job that reads topics, transforms the rows with Spark, and writes topics, exactly once. Brokers keep its progress.

    job = ConsumeTransformProduce(
        spark,
        name="enrich",
        source={"service_url": "pulsar://127.0.0.1:6650", "topic": "topic://public/default/flights"},
        transform=lambda flights: flights.selectExpr("key", "upper(cast(value as string)) as value"),
        sink={"topic": "topic://public/default/shouted"},
    )
    job.run_available()  # or job.run(), until another thread calls job.stop()

A subscription with the job's name holds its position in the source. The job works in batches. It reads, transforms and
writes a range of each segment, and acknowledges the ranges' ends. All of that happens in transactions of one group,
which one decision commits (docs/design.md#transactions). So a batch's output is visible exactly when its input is
acknowledged, whatever dies at any moment. A new driver asks the broker for the subscription's position and the last
batch. There is no checkpoint folder, and other tools see the subscription's lag.

A driver first takes hold of the subscription, then aborts what an earlier driver left open, and then asks for the
position. In this order, nobody else can move the subscription in between. If two drivers run at once all the same, the
group's decision lets one win.

The job calls the transformation for each batch with an ordinary data frame. It has no state from batch to batch: Spark
keeps that (windows, joins of streams, duplicates) in checkpoints, so use a stream for it.
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
"""Options of the source that select a batch's messages. The job reads the batch with all other options."""
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
        """Check the options. Ask no broker yet.

        Args:
            spark: runs the batches.
            name: the job's name, also of its subscription. Only one driver at a time may run a job.
            source: options for reading a stream (options.py) of scalable topics. `starting_position`, by default
                earliest, applies when the job runs for the first time; it is earliest or latest.
                `max_rows_per_trigger` and `max_bytes_per_trigger` bound a batch; without them a batch is everything.
            transform: makes the output rows from a batch's rows, without state from other batches.
            sink: options for writing a batch (write_options.py). `service_url` is by default the source's; it must lead
                to the same cluster.

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
        """Process all that is readable now, and return the number of batches.

        Raises:
            SubscriptionTaken: another driver runs the job.
            TidewireError, and what Spark and the transformation raise: nothing of the failed batch is written. If the
                commit was not answered, all of it may be. The next run continues correctly in both cases.
        """
        with self._progress() as progress:
            persistently(progress.stop_at_present, self._source.operation_timeout_seconds)
            done = 0
            while not self._is_stopping and self._run_batch(progress):
                done += 1
            return done

    def run(self) -> None:
        """Process what there is and what comes, until `stop` is called. Waits for brokers' pushes without polling.

        Raises:
            SubscriptionTaken, TidewireError, others: as `run_available`.
        """
        with self._progress() as progress, self._waking() as woken:
            while not self._is_stopping:
                if not self._run_batch(progress):
                    self._wait(progress, woken)

    def stop(self) -> None:
        """Make `run` return after the current batch. Callable from any thread; the job cannot run again."""
        with self._lock:
            self._is_stopping = True
            if self._wake is not None:
                self._wake.send(b"\0")

    def _run_batch(self, progress: JobProgress) -> bool:
        """Run one batch. Returns False when there is nothing to read."""
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
        # Writing looks formats up in the thread's active session, and this call makes the session active.
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
        """Return when there may be more to read, when a part is no longer held, or when `stop` was called."""
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
                selector.select(min((made.silence_seconds_left for made in progress.connections), default=None))


def _may_pass(error: TidewireError) -> bool:
    # Brokers need a while to notice that a driver died with its machine.
    return isinstance(error, SubscriptionTaken) or passes(error)


def _source_options(given: Mapping[str, str]) -> tuple[ReadOptions, EntryPosition]:
    """The options of the source, and where a job that never ran begins.

    Raises:
        InvalidOption: an option is wrong, or not for a job.
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
