"""A Java machine that plays Kafka's own clients, started once for each version and used by all tests of a process.

The program is tests/interop/java-kafka, which says what goes over its pipes. `scripts/need.py kafka-java-4.3` compiles
it. The machine ends with the process that started it, at once, as if it were killed too.
"""

import atexit
import itertools
import json
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, Final

from scripts.need import place
from tests.support.java import QUICK_JAVA
from tests.support.kafka_clients.contract import Refused

PROGRAM: Final = "tidewire.interop.kafka.Main"
WARNINGS: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
"""The clients log less than they do by default: what tests do to them is worth many warnings."""


class Broken(Exception):
    """The client raised an exception that is none of Kafka's, or the machine ended."""


class Machine:
    """A running program. Several threads may call."""

    def __init__(self, version: str) -> None:
        target = place(f"kafka-java-{version}")
        self._process = subprocess.Popen(
            ["java", *QUICK_JAVA, WARNINGS, "-cp", f"{target}/classes:{target}/lib/*", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        # A thread that is no daemon would be waited for before the machine is told to end.
        self._reading = threading.Thread(target=self._read, daemon=True, name=f"answers of Java, Kafka {version}")
        self._reading.start()

    def number(self) -> int:
        """Return a number for a new party."""
        return next(self._numbers)

    def call(self, party: int, call: str, arguments: Mapping[str, Any]) -> "Future[Any]":
        """Let a party do something. The future has the result, or `Refused` with Kafka's code, or `Broken`."""
        answer: Future[Any] = Future()
        number = next(self._numbers)
        line = json.dumps({"id": number, "party": party, "call": call, "with": arguments})
        with self._writing:
            assert self._process.stdin is not None
            self._waiting[number] = answer
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"])
            if "result" in answer:
                waiting.set_result(answer["result"])
            elif "refused" in answer:
                waiting.set_exception(Refused(*answer["refused"]))
            else:
                waiting.set_exception(Broken(answer["broken"]))
        with self._writing:
            for waiting in self._waiting.values():
                waiting.set_exception(Broken("the Java machine ended"))

    def stop(self) -> None:
        """End it, and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reading.join()
        self._process.stdout.close()


@cache
def running(version: str) -> Machine:
    """Return the machine with this version of the clients. The first call starts it."""
    machine = Machine(version)
    atexit.register(machine.stop)
    return machine
