"""Reads the output of a Spark job in order: the rows of a Parquet sink, or the messages of a topic."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from tests.support.row_copies import Copy, parse_place
from tests.support.spark_job import PLACE
from tidewire.client.message import Message

_LOG: Final = "_spark_metadata"


def parquet_files(folder: Path) -> list[Path]:
    """Return the files of a file sink's output, in the order of its micro-batches, without failed attempts.

    The sink's log has a file for each micro-batch. From time to time one file begins with all earlier entries.
    """
    if not (folder / _LOG).exists():
        return []
    logs = {file.name: file for file in (folder / _LOG).iterdir() if not file.name.startswith(".")}
    compact = max((int(name.partition(".")[0]) for name in logs if name.endswith(".compact")), default=-1)
    plain = sorted(int(name) for name in logs if name.isdigit() and int(name) > compact)
    names = [f"{compact}.compact"] * (compact >= 0) + [str(number) for number in plain]
    found: list[Path] = []
    for name in names:
        _version, *entries = logs[name].read_text().splitlines()
        for entry in map(json.loads, entries):
            assert entry["action"] == "add", entry
            found.append(Path(entry["path"].removeprefix("file://")))
    return found


def parquet_copies(folder: Path) -> list[Copy]:
    """Return the rows of a file sink's output."""
    copies: list[Copy] = []
    for file in parquet_files(folder):
        for number, row in enumerate(pq.read_table(file).to_pylist()):
            copies.append(Copy(f"{file.name} row {number}", parse_place(row[PLACE]), row["key"] or "", row["value"]))
    return copies


def message_copies(messages: Iterable[Message]) -> list[Copy]:
    """Return the messages of a sink's topic."""
    return [
        Copy(str(message.message_id), parse_place(message.properties[PLACE]), message.key or "", message.value)
        for message in messages
    ]
