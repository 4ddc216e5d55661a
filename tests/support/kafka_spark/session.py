"""Spark 4.0.5 with its own Kafka connector, in a process of its own. `jobs.py` is what it can do.

    with running_spark(folder) as spark:
        spark.version
        spark.ask("read", options={...})

scripts/need.py installs SPARK and CONNECTOR.
"""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from scripts.need import place
from tests.support.java import QUICK_JAVA

SPARK: Final = "python:pyspark==4.0.5"
CONNECTOR: Final = "maven:org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
_TAKEN: Final = (
    "spark-sql-kafka-0-10_2.13-*.jar",
    "spark-token-provider-kafka-0-10_2.13-*.jar",
    "kafka-clients-*.jar",
    "commons-pool2-*.jar",
)
"""Of what CONNECTOR brings. Spark has the rest."""

ANSWER_SECONDS_MAX: Final = 240.0
"""From a job to its result, and from the start to the first one."""
END_SECONDS_MAX: Final = 60.0


class SparkFailure(AssertionError):
    """A job failed, or Spark did not answer. The text has the reason."""


class RunningSpark:
    """See the module's docstring; made by `running_spark`."""

    def __init__(self, process: subprocess.Popen[str], stderr_path: Path) -> None:
        self._process = process
        self._stderr_path = stderr_path
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read_lines, args=(process.stdout, self._lines), daemon=True).start()
        self.version = str(self._answer("start"))

    def ask(self, job: str, **arguments: Any) -> Any:
        """Do a job, and return its result.

        Raises:
            SparkFailure: it failed, or took too long.
        """
        assert self._process.stdin is not None
        print(json.dumps({"job": job, "arguments": arguments}), file=self._process.stdin, flush=True)
        return self._answer(job)

    def _answer(self, job: str) -> Any:
        try:
            line = self._lines.get(timeout=ANSWER_SECONDS_MAX)
        except queue.Empty:
            line = ""
        if not line:
            said = self._stderr_path.read_text(encoding="utf-8", errors="replace")[-4000:]
            raise SparkFailure(f"Spark did not answer to {job}; its standard error ends in:\n{said}")
        answer = json.loads(line)
        if "error" in answer:
            raise SparkFailure(f"{job}: {answer['error']}")
        return answer["result"]


@contextmanager
def running_spark(folder: Path) -> Iterator[RunningSpark]:
    """Run Spark with `folder` as its working directory, until the end of the block."""
    connector = place(CONNECTOR)
    jars = ":".join(str(next(connector.glob(pattern))) for pattern in _TAKEN)
    stderr_path = folder / "stderr"
    with stderr_path.open("ab") as stderr:
        process = subprocess.Popen(
            [str(place(SPARK)), str(Path(__file__).with_name("jobs.py")), jars, str(folder / "local")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=folder,
            env={
                name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))
            }
            | {"JDK_JAVA_OPTIONS": " ".join(QUICK_JAVA), "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    try:
        yield RunningSpark(process, stderr_path)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read_lines(stdout: IO[str] | None, lines: queue.SimpleQueue[str]) -> None:
    assert stdout is not None
    with stdout:
        for line in stdout:
            lines.put(line)
    lines.put("")
