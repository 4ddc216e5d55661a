import inspect
import pickle
import subprocess
import sys

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from pyspark_tidewire import DefaultSource
from tidewire.protocol.errors import ConnectFailed
from tidewire.spark import TidewireSource
from tidewire.spark.errors import InvalidOption, UnsupportedSpark
from tidewire.spark.limited_streaming import TidewireStreamReader
from tidewire.spark.limits import Limit
from tidewire.spark.pyspark_versions import require_supported
from tidewire.spark.reader import TidewireReader
from tidewire.spark.refused_stream import RefusedStream
from tidewire.spark.schema import SCHEMA
from tidewire.spark.streaming import lag_of

GIVEN = {"service_url": "pulsar://127.0.0.1:1", "topic": "topic://public/default/x"}


def test_spark_finds_the_format_by_the_modules_name() -> None:
    assert DefaultSource is TidewireSource
    assert issubclass(DefaultSource, DataSource)
    assert inspect.ismethod(DefaultSource.name)
    assert DefaultSource.name() == "tidewire"


def test_finding_the_format_needs_neither_arrow_nor_numpy() -> None:
    """Spark imports every such module, whatever the format, and one that fails breaks all formats."""
    heavy = "{'pyarrow', 'numpy', 'pandas', 'trio', 'anyio', 'google.protobuf'}"
    program = f"import sys, pyspark_tidewire; print({heavy} & set(sys.modules) - before)"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys, pyspark.sql.datasource; before = set(sys.modules); {program}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout == "set()\n"


def test_the_constructor_refuses_nothing_and_the_schema_refuses_wrong_options() -> None:
    source = TidewireSource(CaseInsensitiveDict({"nonsense": "1"}))
    with pytest.raises(InvalidOption, match="unknown option 'nonsense'"):
        source.schema()
    with pytest.raises(InvalidOption, match="unknown option 'nonsense'"):
        source.reader(SCHEMA)
    assert TidewireSource(CaseInsensitiveDict(GIVEN)).schema() == SCHEMA


def test_columns_of_ones_own_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"load without \.schema"):
        TidewireSource(CaseInsensitiveDict(GIVEN)).reader(StructType([]))


def test_columns_that_are_named_are_all_that_there_are() -> None:
    """This holds even if a schema is requested that decodes nothing."""
    for given in ({}, {"schema": "auto"}):
        source = TidewireSource(CaseInsensitiveDict({**GIVEN, **given, "columns": "position, key"}))
        made = source.schema()
        assert made.fieldNames() == ["key", "position"]
        source.reader(made)
        with pytest.raises(InvalidOption, match=r"load without \.schema"):
            source.reader(SCHEMA)


def test_source_and_reader_travel_between_processes() -> None:
    source = pickle.loads(pickle.dumps(TidewireSource(CaseInsensitiveDict(GIVEN))))
    reader = pickle.loads(pickle.dumps(source.reader(schema=SCHEMA)))
    assert isinstance(reader, TidewireReader)
    with pytest.raises(ConnectFailed, match=r"no broker can be reached at pulsar://127\.0\.0\.1:1"):
        reader.partitions()


def test_the_partition_that_spark_makes_of_an_empty_plan_has_no_rows() -> None:
    reader = TidewireSource(CaseInsensitiveDict(GIVEN)).reader(SCHEMA)
    assert not list(reader.read(InputPartition(None)))


def test_a_stream_reader_travels_without_what_plans_in_its_process() -> None:
    reader = TidewireSource(CaseInsensitiveDict(GIVEN)).streamReader(schema=SCHEMA)
    assert isinstance(reader, TidewireStreamReader)
    reader.getDefaultReadLimit()
    assert reader._plans is reader._plans
    assert pickle.loads(pickle.dumps(reader))._planner is None
    reader.stop()
    assert not list(reader.read(InputPartition(None)))


@pytest.mark.parametrize(
    ("options", "limit", "taken"),
    [
        ({}, ReadAllAvailable(), Limit()),
        ({"maxRowsPerTrigger": "7"}, ReadMaxRows(7), Limit(7)),
        ({"maxBytesPerTrigger": "9"}, ReadMaxBytes(9), Limit(None, 9)),
        ({"maxRowsPerTrigger": "7", "maxBytesPerTrigger": "9"}, ReadMaxRows(7), Limit(7, 9)),
    ],
)
def test_sparks_limit_is_kept_and_it_may_lift_that_of_the_options(
    options: dict[str, str], limit: ReadLimit, taken: Limit
) -> None:
    reader = TidewireSource(CaseInsensitiveDict({**GIVEN, **options})).streamReader(SCHEMA)
    assert isinstance(reader, TidewireStreamReader)
    assert reader.getDefaultReadLimit() == limit
    assert reader._limit(limit) == taken
    assert reader._limit(ReadAllAvailable()) == Limit()


def test_what_a_stream_does_not_take_is_refused() -> None:
    reader = TidewireSource(CaseInsensitiveDict({**GIVEN, "ending_position": "latest"})).streamReader(SCHEMA)
    assert isinstance(reader, RefusedStream)
    for question in (reader.initialOffset, reader.latestOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(InvalidOption, match="option ending_position is not for a stream"):
            question()
    reader.stop()


def test_a_stream_gives_up_on_a_broker_that_stays_away() -> None:
    given = {**GIVEN, "operation_timeout_seconds": "0.1"}
    reader = TidewireSource(CaseInsensitiveDict(given)).streamReader(SCHEMA)
    with pytest.raises(ConnectFailed):
        reader.initialOffset()


def test_a_progress_without_a_lag_says_which_spark_reports_one() -> None:
    for latest in (None, "None", '{"topic://public/default/x": {}}'):
        with pytest.raises(ValueError, match=r"Spark 4\.2 and newer report it"):
            lag_of({"latestOffset": latest})


def test_a_python_without_pyspark_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UnsupportedSpark, match=r"^there is no PySpark in this Python; install it with: pip install"):
        require_supported()
