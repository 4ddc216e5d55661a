"""Spark's filters of a batch to the conditions that are understood here (`pushed.py`). PySpark has them since 4.1."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tidewire.spark.pushed import NOTHING_PUSHED, Pushed
from tidewire.spark.reader import TidewireReader

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EQUAL: Final = (EqualTo, EqualNullSafe)
_LOWER: Final = (GreaterThan, GreaterThanOrEqual)
_UPPER: Final = (LessThan, LessThanOrEqual)


class FilteringReader(TidewireReader):
    """Applies filters before Spark does."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep the filters that are understood. Spark applies all of them again."""
        self._pushed = pushed_of(filters)
        return filters


def pushed_of(filters: Iterable[Filter]) -> Pushed:
    """The conditions that are understood here, of filters that must all hold."""
    pushed = NOTHING_PUSHED
    for one in filters:
        pushed = _narrowed(pushed, one)
    return pushed


def _narrowed(pushed: Pushed, one: Filter) -> Pushed:
    column = getattr(one, "attribute", ())
    value: Any = getattr(one, "value", None)
    if column == ("publish_time",) and isinstance(value, datetime):
        time_us = _microseconds(value)
        lowest, highest = pushed.published_from_us, pushed.published_upto_us
        # Open bounds are treated as closed ones, because Spark filters again.
        if isinstance(one, (*_LOWER, *_EQUAL)):
            lowest = time_us if lowest is None else max(lowest, time_us)
        if isinstance(one, (*_UPPER, *_EQUAL)):
            highest = time_us if highest is None else min(highest, time_us)
        return pushed._replace(published_from_us=lowest, published_upto_us=highest)
    if isinstance(one, _EQUAL):
        values = frozenset({value})
    elif isinstance(one, In):
        values = frozenset(value)
    else:
        return pushed
    if not all(isinstance(item, str) for item in values):
        return pushed
    names = {("topic",): "topics", ("segment",): "segments", ("key",): "keys"}
    name = names.get(tuple(column))
    if name is None:
        return pushed
    before: frozenset[str] | None = getattr(pushed, name)
    return pushed._replace(**{name: values if before is None else before & values})  # type: ignore[arg-type]


def _microseconds(time: datetime) -> int:
    aware = time.astimezone(UTC)
    since = aware - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
