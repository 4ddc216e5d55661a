"""The data source that Spark knows as `tidewire`.

Spark imports this module to find the format's name, in every environment where the package is installed, also when the
job uses other sources; an import that fails there breaks them too. So it needs nothing but pyspark, and what reads is
imported when something is read. The constructor keeps what it is given and does no more: Spark calls it often, in
several processes, and hides some of what it raises.
"""

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidewire.spark.errors import InvalidOption
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.schema import SCHEMA, only
from tidewire.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from tidewire.spark.reader import TidewireReader
    from tidewire.spark.sink import TidewireStreamWriter, TidewireWriter
    from tidewire.spark.streaming import TidewireStreamReader
    from tidewire.spark.topic_schemas import TopicSchema


class TidewireSource(DataSource):
    """`format("tidewire")`.

    For reading, the options stand in options.py and the columns in schema.py; for writing, in write_options.py and
    columns.py.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Keeps the options unread."""
        super().__init__(options)
        self._given: Mapping[str, str] = options
        # What `schema` found; Spark pickles this object after calling it, and all its processes use the copy.
        self._columns = SCHEMA
        self._topic_schema: TopicSchema | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tidewire"

    def schema(self) -> StructType:
        """The columns, which but for `value` are the same for every topic; wrong options are told here, by `load`.

        Raises:
            InvalidOption: an option is unknown, missing or wrong.
            TidewireError: with schema=auto, the topic's schema cannot be had, or is none that there is a column for.
        """
        options = ReadOptions.parse(self._given)
        if options.decoded:
            from tidewire.spark.reader import columns

            self._columns, self._topic_schema = columns(options)
        else:
            self._columns = only(SCHEMA, options.columns)
        return self._columns

    def reader(self, schema: StructType) -> "TidewireReader":
        """A batch reader.

        Raises:
            InvalidOption: as `schema`, or the user asked for columns of their own.
        """
        options = ReadOptions.parse(self._given, Use.BATCH)
        self._check(schema)
        from tidewire.spark.reader import FilteringReader, TidewireReader

        return (FilteringReader if options.push_filters else TidewireReader)(options, schema, self._topic_schema)

    def streamReader(self, schema: StructType) -> "TidewireStreamReader":  # noqa: N802 - Spark's name
        """A reader of a stream.

        Raises:
            InvalidOption: as `reader`.
        """
        options = ReadOptions.parse(self._given, Use.STREAM)
        self._check(schema)
        from tidewire.spark.streaming import TidewireStreamReader

        return TidewireStreamReader(options, schema, self._topic_schema)

    def writer(self, schema: StructType, overwrite: bool) -> "TidewireWriter":
        """A writer of a batch.

        Raises:
            InvalidOption: an option is unknown, missing or wrong, or the mode is not append.
            UnwritableColumns: no messages can be made of the data frame's columns.
        """
        options = WriteOptions.parse(self._given, Use.BATCH)
        if overwrite:
            raise InvalidOption('a topic is not overwritten: write with .mode("append")')
        from tidewire.spark.sink import TidewireWriter

        return TidewireWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TidewireStreamWriter":  # noqa: N802
        """A writer of a stream's micro-batches.

        Raises:
            InvalidOption, UnwritableColumns: as `writer`.
        """
        options = WriteOptions.parse(self._given, Use.STREAM)
        if overwrite:
            raise InvalidOption('a topic is not overwritten: write with .outputMode("append"), or in foreachBatch')
        from tidewire.spark.sink import TidewireStreamWriter

        return TidewireStreamWriter(options, schema)

    def _check(self, schema: StructType) -> None:
        if schema != self._columns:
            raise InvalidOption("format tidewire has its own schema; load without .schema(...) and select columns")
