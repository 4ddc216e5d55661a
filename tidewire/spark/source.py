"""The data source that Spark knows as `tidewire`.

Spark imports this module to find the format's name, in every environment where the package is installed, even for jobs
with other sources. An import error here would break those jobs, too. So the module needs nothing but pyspark, and
imports the code that reads when something is read. The constructor only stores its arguments: Spark calls it often, in
several processes, and hides some of its errors.
"""

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidewire.spark.errors import InvalidOption
from tidewire.spark.one_sentence import one_sentence
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.pyspark_versions import FILTERS_SINCE, LIMITS_SINCE, version
from tidewire.spark.schema import SCHEMA, only
from tidewire.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from tidewire.spark.reader import TidewireReader
    from tidewire.spark.refused_stream import RefusedStream
    from tidewire.spark.sink import TidewireStreamWriter, TidewireWriter
    from tidewire.spark.streaming import StreamReading
    from tidewire.spark.topic_schemas import TopicSchema


class TidewireSource(DataSource):
    """`format("tidewire")`.

    For reading, options.py describes the options and schema.py the columns. For writing, write_options.py and
    columns.py do.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Store the options unread."""
        super().__init__(options)
        self._given: Mapping[str, str] = options
        # The result of `schema`. Spark pickles this object after that call, and all its processes use the copy.
        self._columns = SCHEMA
        self._topic_schema: TopicSchema | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tidewire"

    @one_sentence()
    def schema(self) -> StructType:
        """The columns; only `value` differs between topics. `load` calls this, so wrong options fail there.

        Raises:
            InvalidOption: an option is unknown, missing or wrong.
            TidewireError: with schema=auto: the topic's schema could not be fetched, or has no Spark type.
        """
        options = ReadOptions.parse(self._given)
        if options.decoded:
            from tidewire.spark.reader import columns

            self._columns, self._topic_schema = columns(options)
        else:
            self._columns = only(SCHEMA, options.columns)
        return self._columns

    @one_sentence()
    def reader(self, schema: StructType) -> "TidewireReader":
        """A batch reader.

        Raises:
            InvalidOption: as `schema`, or the user gave a schema, or this Spark does not push filters.
        """
        options = ReadOptions.parse(self._given, Use.BATCH)
        self._check(schema)
        if not options.push_filters:
            from tidewire.spark.reader import TidewireReader

            return TidewireReader(options, schema, self._topic_schema)
        if version() < FILTERS_SINCE:
            raise InvalidOption(
                "option push_filters needs Spark 4.1 or newer; leave it out, and Spark filters the rows"
            )
        from tidewire.spark.filters import FilteringReader

        return FilteringReader(options, schema, self._topic_schema)

    def streamReader(self, schema: StructType) -> "StreamReading | RefusedStream":  # noqa: N802 - Spark's name
        """A reader of a stream. It raises InvalidOption, as `reader` does, at Spark's first question.

        Spark up to 4.3 stops the reader even if this method raised. Then there is no reader, and users would see
        Spark's UnboundLocalError in place of the reason.
        """
        try:
            options = ReadOptions.parse(self._given, Use.STREAM)
            self._check(schema)
        except InvalidOption as error:
            from tidewire.spark.refused_stream import RefusedStream

            return RefusedStream(error)
        if version() < LIMITS_SINCE:
            from tidewire.spark.streaming import EarlyStreamReader

            return EarlyStreamReader(options, schema, self._topic_schema)
        from tidewire.spark.limited_streaming import TidewireStreamReader

        return TidewireStreamReader(options, schema, self._topic_schema)

    @one_sentence()
    def writer(self, schema: StructType, overwrite: bool) -> "TidewireWriter":
        """A writer of a batch.

        Raises:
            InvalidOption: an option is unknown, missing or wrong, or the mode is not append.
            UnwritableColumns: the data frame's columns do not fit into messages.
        """
        options = WriteOptions.parse(self._given, Use.BATCH)
        if overwrite:
            raise InvalidOption('a topic cannot be overwritten: write with .mode("append")')
        from tidewire.spark.sink import TidewireWriter

        return TidewireWriter(options, schema)

    @one_sentence()
    def streamWriter(self, schema: StructType, overwrite: bool) -> "TidewireStreamWriter":  # noqa: N802
        """A writer of a stream's micro-batches.

        Raises:
            InvalidOption, UnwritableColumns: as `writer`.
        """
        options = WriteOptions.parse(self._given, Use.STREAM)
        if overwrite:
            raise InvalidOption('a topic cannot be overwritten: write with .outputMode("append"), or in foreachBatch')
        from tidewire.spark.sink import TidewireStreamWriter

        return TidewireStreamWriter(options, schema)

    def _check(self, schema: StructType) -> None:
        if schema != self._columns:
            raise InvalidOption("format tidewire has its own schema; load without .schema(...) and select columns")
