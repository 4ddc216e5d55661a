"""Tidewire topics in Spark.

    flights = (
        spark.read.format("tidewire")
        .option("service_url", "pulsar://127.0.0.1:6650")
        .option("topic", "topic://public/default/flights")
        .load()
    )
    flights.groupBy("key").count().show()

A read contains everything that was committed when Spark planned it, and nothing of open or aborted transactions. Each
segment of the topic is a Spark partition; a large one is several. Spark plans the read when it first uses the data
frame. Later uses give the same rows: call `load` again to see newer ones. schema.py describes the columns, and
options.py the options.

`spark.readStream` takes the same options and some of its own. The stream follows splits and merges, and reads a
segment's children after the segment itself. It stops at `trigger(availableNow=True)`, and reports its lag in the
query's progress (`streaming.lag_of`). Its offsets, as stored in Spark's checkpoint, are valid for `starting_position`.

Data frames and streams are written to topics the same way:

    (
        flights.selectExpr("carrier AS key", "to_json(struct(*)) AS value")
        .write.format("tidewire")
        .option("service_url", "pulsar://127.0.0.1:6650")
        .option("topic", "topic://public/default/departures")
        .mode("append")
        .save()
    )

A batch or a micro-batch becomes visible all at once or not at all. It becomes visible once, however often Spark retries
its tasks or restarts the query from its checkpoint. columns.py describes what is written, and write_options.py the
options.

`ConsumeTransformProduce` is a job from topics to topics, exactly once without Spark's checkpoint (transforming.py).
`MicroBatchSpans` traces a stream's micro-batches with OpenTelemetry (micro_batch_spans.py).

Spark finds the format by itself if the Python of driver and executors has this package installed. If the package is
only shipped (`--py-files`, a notebook's path), register the format once per session:

    from tidewire.spark import TidewireSource
    spark.dataSource.register(TidewireSource)

- `source`: what Spark calls by name; `reader`: what it calls to plan and to read
- `layouts`: the parts of topics; `measuring`: their backlog; `planning`: topics to ranges of their segments
- `receiving`, `chunked`: a range to entries; `rows`: entries to Arrow; `topic_schemas`, `decoding`: values by a topic's
  schema
- `brokers`, `connection`: lookup, and a blocking socket over the wire codec
- `streaming`, `limited_streaming`: what Spark calls for a stream; `stream_planner`: its planning process; `watching`:
  what brokers push to it; `following`: its next offset, with `offsets` (which segments are read next) and `limits`,
  pure; `subscribing`: its published progress
- `sink`: what Spark calls to write; `columns`, `values`, `encoding`: a data frame to messages; `routing`: messages to
  segments; `batching`, `writing`: sending them in one transaction; `coordinating`, `committing`: the one decision on a
  batch's transactions; `persisting`: retries while brokers are away
- `transforming`: a job without a checkpoint; `job_progress`, `held_subscription`: its progress, which brokers keep
- `filters`, `pushed`: Spark's filters, and the conditions that they become; `pyspark_versions`: where Sparks differ
- `one_sentence`: errors without the Python calls
- `options`, `write_options`, `positions`, `schema`, `partitions`, `errors`: the terms of all others
"""

from typing import TYPE_CHECKING, Any

from tidewire.spark.pyspark_versions import require_supported

require_supported()
from tidewire.spark.source import TidewireSource  # noqa: E402 - an older Spark has nothing that this could import

if TYPE_CHECKING:
    from tidewire.spark.micro_batch_spans import MicroBatchSpans
    from tidewire.spark.transforming import ConsumeTransformProduce

__all__ = ["ConsumeTransformProduce", "MicroBatchSpans", "TidewireSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any attribute
    # Spark imports this package wherever it looks for formats. There it must need nothing but pyspark.
    if name == "ConsumeTransformProduce":
        from tidewire.spark.transforming import ConsumeTransformProduce

        return ConsumeTransformProduce
    if name == "MicroBatchSpans":
        from tidewire.spark.micro_batch_spans import MicroBatchSpans

        return MicroBatchSpans
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
