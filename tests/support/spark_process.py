"""A process of some Python environment that runs Spark and does jobs, by name, one after another.

    with spark_process(python, Path("jobs.py"), [], folder) as spark:
        spark.version
        spark.ask("read", options={...})

The script writes a line to standard output when Spark has started: {"result": VERSION}. Then it reads a job from each
line of standard input, {"job": name, "arguments": {...}}, and writes its result as a line: {"result": ...}, or
{"error": text}. It ends with its input. Nothing in its environment refers to this checkout, except the variables that
the caller gives.
"""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from tests.support.java import QUICK_ENVIRONMENT

ANSWER_SECONDS_MAX: Final = 240.0
"""From a job to its result, and from the start to the first one."""
END_SECONDS_MAX: Final = 60.0


class SparkFailure(AssertionError):
    """A job failed, or Spark did not answer. The text has the reason."""


class RunningSpark:
    """See the module's docstring; made by `spark_process`."""

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
def spark_process(
    python: Path,
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
) -> Iterator[RunningSpark]:
    """Run the script with `folder` as its working directory, until the end of the block."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))
    }
    stderr_path = folder / "stderr"
    with stderr_path.open("ab") as stderr:
        process = subprocess.Popen(
            [str(python), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=folder,
            env={
                **inherited,
                **QUICK_ENVIRONMENT,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": str(python),
                **(variables or {}),
            },
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
