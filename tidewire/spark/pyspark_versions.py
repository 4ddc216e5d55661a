"""Where PySpark 4.0, 4.1, 4.2 and 4.3 differ, and which Spark is refused.

| what | since |
|---|---|
| the Data Source API | 4.0 |
| filters of a batch (`FILTERS_SINCE`), a class for a stream's Arrow sink (`STREAM_ARROW_SINCE`) | 4.1 |
| limits of a stream, and its stop at `trigger(availableNow=True)` (`LIMITS_SINCE`) | 4.2 |

This module imports without PySpark, so that it can say that PySpark is missing.
"""

from typing import TYPE_CHECKING, Final

from tidewire.spark.errors import UnsupportedSpark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

OLDEST: Final = (4, 0)
FILTERS_SINCE: Final = (4, 1)
STREAM_ARROW_SINCE: Final = (4, 1)
LIMITS_SINCE: Final = (4, 2)
_ARROW_TIMEZONE_SINCE: Final = (4, 2)


def minor_version(text: str) -> tuple[int, int]:
    """The first two numbers of a version of Spark."""
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


def require_supported() -> None:
    """Return if this Python has a PySpark with the Data Source API.

    Raises:
        UnsupportedSpark: it has none.
    """
    try:
        import pyspark
    except ImportError as error:
        raise UnsupportedSpark(
            "there is no PySpark in this Python; install it with: pip install 'tidewire[spark]'"
        ) from error
    if minor_version(pyspark.__version__) < OLDEST:
        raise UnsupportedSpark(
            f"tidewire needs PySpark 4.0 to 4.3, and this Python has PySpark {pyspark.__version__}; older Sparks can "
            "read and write topics with Spark's Kafka connector, at the broker's Kafka address"
        )


def version() -> tuple[int, int]:
    """The version of this Python's PySpark."""
    import pyspark

    return minor_version(pyspark.__version__)


def arrow_schema(made: "StructType") -> "pa.Schema":
    """A data frame's Arrow schema, made by the function with which Spark checks a reader's batches. Times are UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(made, timezone="UTC") if version() >= _ARROW_TIMEZONE_SINCE else to_arrow_schema(made)


def arrow_type(made: "DataType") -> "pa.DataType":
    """A column's Arrow type, as in `arrow_schema`."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(made, timezone="UTC") if version() >= _ARROW_TIMEZONE_SINCE else to_arrow_type(made)
