"""docs/spark.md describes options and columns as the code has them."""

import re
from pathlib import Path
from typing import Final

from pyspark.sql.types import StructType

from tidewire.spark import columns, options
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.schema import SCHEMA
from tidewire.spark.write_options import WRITE_NAMES, WriteOptions

PAGE: Final = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
SERVICE: Final = {"service_url": "pulsar://h", "topic": "topic://a/b/c"}


def table(heading: str) -> dict[str, list[str]]:
    """Return the rows of the first table after a heading, by the name in their first cell."""
    lines = PAGE.partition(f"\n{heading}\n")[2].splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("| `")]
    first = next(number for number, line in enumerate(lines) if line.startswith("| `"))
    last = next(number for number, line in enumerate(lines[first:], first) if not line.startswith("|"))
    return {row[0].strip("`"): row[1:] for row in rows[: last - first]}


def test_every_option_for_reading_is_in_the_table_with_its_use_and_default() -> None:
    rows = table("### Options for reading")
    assert list(rows) == list(options.READ_NAMES)
    for word, names in (("batch", options._BATCH_ONLY), ("stream", options._STREAM_ONLY)):
        assert {name for name, row in rows.items() if row[0] == word} == set(names)
    for use, word in ((Use.BATCH, "batch"), (Use.STREAM, "stream")):
        for name, (applies_to, _, default) in rows.items():
            said = re.search(rf"{word}: `(\w+)`", default) or re.match(r"`(\w+)`", default)
            if said and applies_to in ("both", word):
                assert ReadOptions.parse({**SERVICE, name: said[1]}, use) == ReadOptions.parse(SERVICE, use), name


def test_every_option_for_writing_is_in_the_table_with_its_default() -> None:
    rows = table("### Options for writing")
    assert list(rows) == list(WRITE_NAMES)
    for name, (_, _, default) in rows.items():
        said = re.match(r"`(\w+)`", default)
        if said:
            assert WriteOptions.parse({**SERVICE, name: said[1]}, Use.BATCH) == WriteOptions.parse(SERVICE, Use.BATCH)


def test_every_column_that_is_written_is_in_the_table() -> None:
    assert set(table("## Writing")) == {"value", *columns._WRITTEN}


def test_every_column_is_in_the_table_with_its_type() -> None:
    rows = table("## Reading")
    assert list(rows) == SCHEMA.names
    for field in SCHEMA.fields:
        type_ = rows[field.name][0].replace("&lt;", "<").replace("&gt;", ">")
        said = field.dataType.simpleString().replace(",", ", ")
        if isinstance(field.dataType, StructType):
            said = f"struct<{', '.join(field.dataType.names)}>"
        assert type_ == said
