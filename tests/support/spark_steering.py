"""Format "tidewire" for kill tests of Spark: each process reports the step it has reached, and can be held there.

    spark.dataSource.register(SteeredTidewire)
    spark.readStream.format("tidewire_steered").option("steering", str(folder)) ...

It is the data source that users have, but it writes a line before and after each step. Lines go into a named pipe in
the `steering` folder, each in one write, as `EVENT PID`. If the folder has a file `hold EVENT`, the first process that
reaches this event removes the file and pauses until it is killed. So a kill comes exactly there, however short the step
is. The process reports it with a line `held EVENT PID`, and continues after HELD_SECONDS_MAX.

It runs in Spark's processes, so it imports only what exists there. `spark_driver.listen` reads the lines elsewhere.
"""

import os
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from tidewire.spark.limited_streaming import TidewireStreamReader
from tidewire.spark.options import ReadOptions
from tidewire.spark.sink import TidewireStreamWriter, Written
from tidewire.spark.source import TidewireSource
from tidewire.spark.topic_schemas import TopicSchema
from tidewire.spark.write_options import WriteOptions

FORMAT: Final = "tidewire_steered"
PIPE: Final = "pipe"
HELD: Final = "held"
HELD_SECONDS_MAX: Final = 20.0

PLANNED: Final = "planned"
"""The source has named the end of a micro-batch; Spark has not written it down."""
DIVIDED: Final = "divided"
"""The source has divided a micro-batch into tasks; Spark has written its offsets down."""
READ_BEGUN: Final = "read begun"
READ_SOME: Final = "read some"
READ_DONE: Final = "read done"
SOURCE_TOLD: Final = "source told"
"""Spark has told the source that a micro-batch is processed."""
WRITE_BEGUN: Final = "write begun"
WRITE_SOME: Final = "write some"
"""A task of the sink is given more to write; what came before may be on its way, or stored."""
WRITE_DONE: Final = "write done"
"""A task of the sink has everything stored; Spark has not been told."""
SINK_COMMITTING: Final = "sink committing"
"""All tasks of a micro-batch are done; the broker has not been told."""
SINK_COMMITTED: Final = "sink committed"
"""The broker has committed a micro-batch; Spark has not written that down."""
SINK_ABORTED: Final = "sink aborted"


def make_folder(folder: Path) -> None:
    """Make a folder for steering."""
    folder.mkdir()
    os.mkfifo(folder / PIPE)


def hold(folder: Path, event: str) -> None:
    """Hold the next process that reaches this event."""
    (folder / f"hold {event}").touch()


def let_go(folder: Path) -> None:
    """Stop holding processes at events that none has reached."""
    for file in folder.glob("hold *"):
        file.unlink(missing_ok=True)


def reached(folder: Path, event: str) -> None:
    """Report that this process has reached the event."""
    _say(folder, event)
    try:
        (folder / f"hold {event}").unlink()
    except FileNotFoundError:
        return
    _say(folder, f"{HELD} {event}")
    threading.Event().wait(HELD_SECONDS_MAX)


def _say(folder: Path, text: str) -> None:
    # After the story nobody listens, and then no process may be held.
    with suppress(OSError):
        pipe = os.open(folder / PIPE, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, f"{text} {os.getpid()}\n".encode())
        finally:
            os.close(pipe)


class SteeredTidewire(TidewireSource):
    """See the module's docstring."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._steering = Path(options["steering"])
        super().__init__({name: value for name, value in options.items() if name != "steering"})

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> TidewireStreamReader:  # noqa: N802 - Spark's name
        made = super().streamReader(schema)
        assert isinstance(made, TidewireStreamReader)
        return SteeredReader(self._steering, made._options, schema, self._topic_schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidewireStreamWriter:  # noqa: N802
        made = super().streamWriter(schema, overwrite)
        return SteeredWriter(self._steering, made._options, schema)


class SteeredReader(TidewireStreamReader):
    """The source, which reports its steps."""

    def __init__(
        self, steering: Path, options: ReadOptions, schema: StructType, topic_schema: TopicSchema | None
    ) -> None:
        super().__init__(options, schema, topic_schema)
        self._steering = steering

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        found = super().latestOffset(start, limit)
        if found != start:
            reached(self._steering, PLANNED)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found = super().partitions(start, end)
        reached(self._steering, DIVIDED)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reached(self._steering, READ_BEGUN)
        for batch in super().read(partition):
            yield batch
            reached(self._steering, READ_SOME)
        reached(self._steering, READ_DONE)

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(end)
        reached(self._steering, SOURCE_TOLD)


class SteeredWriter(TidewireStreamWriter):
    """The sink, which reports its steps."""

    def __init__(self, steering: Path, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._steering = steering

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        def told() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                reached(self._steering, WRITE_SOME)
                yield batch

        reached(self._steering, WRITE_BEGUN)
        report = super().write(told())
        reached(self._steering, WRITE_DONE)
        return report

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        reached(self._steering, SINK_COMMITTING)
        super().commit(messages, batchId)
        reached(self._steering, SINK_COMMITTED)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().abort(messages, batchId)
        reached(self._steering, SINK_ABORTED)
