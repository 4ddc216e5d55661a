"""A job's driver that dies at any of its requests, before or after the broker has handled it.

There is no Spark here: the rounds are those of transforming.py, and these tests read and write with the classes that
Spark's tasks use. The death is an unhandled exception, after which all sockets close, as the kernel does it.
"""

from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from tests.tidewire.spark.test_job_progress import Job, broker, job
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.job_progress import JobProgress
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.persisting import persistently
from tidewire.spark.reader import TidewireReader
from tidewire.spark.schema import SCHEMA
from tidewire.spark.sink import RowWriting, TidewireWriter
from tidewire.spark.transforming import _may_pass
from tidewire.spark.write_options import WriteOptions

__all__ = ["broker", "job"]
"""Fixtures."""

REQUESTS_MAX: Final = 200
"""A round has fewer."""


class Died(BaseException):
    """The driver was killed."""


class Fate:
    """Counts requests, and kills the driver at one of them."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.is_done_first = False
        self._request = BlockingConnection.request

    def request(self, connection: BlockingConnection, make: Callable[[int], Any], expected: type[Message]) -> Message:
        """Replaces `BlockingConnection.request`."""
        if self.left is None:
            return self._request(connection, make, expected)
        self.left -= 1
        if self.left < 0 and not self.is_done_first:
            raise Died
        answer = self._request(connection, make, expected)
        if self.left < 0:
            raise Died
        return answer


def process_all(job: Job, progress: JobProgress, target: str) -> None:
    """Do what `run_available` does, one task after the other."""
    while (begun := persistently(progress.begin, 30, _may_pass)) is not None:
        batch, transaction = begun
        reading = {
            "service_url": job.broker.service_url,
            "topic": batch.topics,
            "starting_position": batch.starting_position,
            "ending_position": batch.ending_position,
        }
        writing = {
            "service_url": job.broker.service_url,
            "topic": target,
            "txn_app_id": batch.application,
            "txn_version": str(batch.number),
            "also_commit": "{}:{}".format(*transaction),
        }
        options = WriteOptions.parse(writing, Use.BATCH)
        reader = TidewireReader(ReadOptions.parse(reading, Use.BATCH))
        written = [RowWriting(options, SCHEMA).write(batch.group, reader.read(part)) for part in reader.partitions()]
        TidewireWriter(options, SCHEMA).commit([*written])
        progress.committed(batch)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_done_first", [False, True])
def test_each_message_is_written_once_wherever_the_driver_dies(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_done_first: bool
) -> None:
    """T22, T25, D17: at every request of a round in turn; each driver finds what the one before it left."""
    target = Job(job.broker, f"{job.topic}-out")
    target.administer("PUT", "?numInitialSegments=2")
    fate = Fate()
    fate.is_done_first = is_done_first
    monkeypatch.setattr(BlockingConnection, "request", lambda *given: fate.request(*given))
    sent = 0
    for number in range(REQUESTS_MAX):
        job.send(b"%d" % sent, b"%d" % (sent + 1))
        sent += 2
        if number in (3, 9):
            # The active segment with the lowest number; the first one's number is 0, its children's 1 and 2.
            job.administer("POST", f"/split/{(0, 1)[number // 9]}")
        fate.left = number
        with closing(job.progress()) as progress:
            try:
                process_all(job, progress, target.topic)
            except Died:
                continue
        break
    else:
        raise AssertionError("no driver has lived to the end")
    assert number > 20, "nobody has died at most requests"
    fate.left = None
    with closing(job.progress()) as progress:
        assert progress.begin() is None
    reader = TidewireReader(ReadOptions.parse({"service_url": job.broker.service_url, "topic": target.topic}))
    found = [value for part in reader.partitions() for rows in reader.read(part) for value in rows["value"].to_pylist()]
    assert sorted(map(int, found)) == list(range(sent))
