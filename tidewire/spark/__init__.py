"""Tidewire topics in Spark.

    flights = (
        spark.read.format("tidewire")
        .option("service_url", "pulsar://127.0.0.1:6650")
        .option("topic", "topic://public/default/flights")
        .load()
    )
    flights.groupBy("key").count().show()

A read contains everything that was committed when it was planned and nothing of open or aborted transactions; it has
a Spark partition for each segment of the topic, several for a large one. Spark plans it when the data frame is first
used, and the data frame then keeps its rows: `load` again to see what was committed since. schema.py describes the
columns, options.py the options.

`spark.readStream` takes the same options and some of its own: the stream goes on behind splits and merges, a segment's
children after the segment itself, stops at `trigger(availableNow=True)`, and reports its lag in the query's progress
(`streaming.lag_of`). Its offsets, as in Spark's checkpoint, are what `starting_position` takes.

Data frames and streams are written to topics the same way:

    (
        flights.selectExpr("carrier AS key", "to_json(struct(*)) AS value")
        .write.format("tidewire")
        .option("service_url", "pulsar://127.0.0.1:6650")
        .option("topic", "topic://public/default/departures")
        .mode("append")
        .save()
    )

What a batch or a micro-batch writes is read all at once or not at all, and once, however often Spark tries its tasks or
runs the query again from its checkpoint. columns.py describes what is written, write_options.py the options.

`ConsumeTransformProduce` is a job from topics to topics, exactly once without Spark's checkpoint (transforming.py).

Spark finds the format by itself where this package is installed in the Python of driver and executors. Where it is not
installed but shipped (`--py-files`, a notebook's path), register it once per session:

    from tidewire.spark import TidewireSource
    spark.dataSource.register(TidewireSource)

- `source`: what Spark calls by name; `reader`: what it calls to plan and to read
- `layouts`: the parts of topics; `measuring`: how much stands in one; `planning`: topics to ranges of their segments
- `receiving`: a range to entries; `rows`: entries to Arrow; `topic_schemas`, `decoding`: values by a topic's schema
- `brokers`, `connection`: lookup, and a blocking socket over the wire codec
- `streaming`: what Spark calls for a stream; `watching`: what brokers push to its planner; `following`: its next
  offset, with `offsets` (which segment's turn it is) and `limits`, pure; `subscribing`: its place as others see it
- `sink`: what Spark calls to write; `columns`, `values`, `encoding`: a data frame to messages; `routing`: to which
  segment; `batching`, `writing`: sending them in one transaction; `coordinating`, `committing`: which transactions of
  a batch are committed, by one decision; `persisting`: asking again while brokers are away
- `transforming`: a job without a checkpoint; `job_progress`, `held_subscription`: what brokers know of it
- `options`, `write_options`, `positions`, `filters`, `schema`, `partitions`, `errors`: what the others speak of
"""

from typing import TYPE_CHECKING, Any

from tidewire.spark.source import TidewireSource

if TYPE_CHECKING:
    from tidewire.spark.transforming import ConsumeTransformProduce

__all__ = ["ConsumeTransformProduce", "TidewireSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    # Spark imports this package wherever it looks for formats, and is to need nothing but pyspark there.
    if name == "ConsumeTransformProduce":
        from tidewire.spark.transforming import ConsumeTransformProduce

        return ConsumeTransformProduce
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
