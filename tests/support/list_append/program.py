"""A client of list-append histories, in a process of its own: it does transactions, and notes each step in a file.

    python -m tests.support.list_append.program ORDERS

ORDERS is an `Orders` in JSON. It prints one line when it is ready. It goes on until SIGTERM, and then ends with status
0. Each line of the file is an event, written before its call or after its answer. So a killed process leaves all that
its parent needs to know.
"""

import faulthandler
import json
import signal
import sys
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic_ns
from types import FrameType
from typing import Any, Final, Self

from tests.support.kafka_clients.contract import Refused
from tests.support.list_append.clients import Lists, opened_lists
from tests.support.list_append.history import Reading

STEP_SECONDS_MAX: Final = 200.0
"""After this time a client hangs. A transaction has several calls, of which each has a time-out of less."""

APPENDS_MAX: Final = 4
READINGS_MAX: Final = 2
ABORTED_SHARE: Final = 0.2


@dataclass(frozen=True)
class Orders:
    """What one client does."""

    client: str
    address: str
    transactional_id: str
    lists: int
    first_value: int
    seed: str
    events: str
    """The file."""

    def dumps(self) -> str:
        """Return them as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        """Undo `dumps`."""
        return cls(**json.loads(text))


class _Notes:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def note(self, what: str, **more: Any) -> None:
        """Note an event. It is in the file on return, whatever happens to this process."""
        # One write, so a line is whole or not there.
        self._file.write(json.dumps({"what": what, "at_ns": monotonic_ns(), **more}) + "\n")

    def reading(self, reading: Reading) -> None:
        """Note what was read."""
        self._file.write(
            json.dumps(
                {
                    "what": "read",
                    "at_ns": reading.ended_ns,
                    "began_ns": reading.began_ns,
                    "list": reading.of_list,
                    "end": reading.end,
                    "entries": reading.entries,
                }
            )
            + "\n"
        )


class _Stopping:
    def __init__(self) -> None:
        self.is_asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True


def _transact(lists: Lists, notes: _Notes, orders: Orders, random: Random, values: "count[int]") -> None:
    """Do a transaction, with readings in it, and note each step."""
    notes.note("began")
    lists.begin()
    steps = ["append"] * random.randint(1, APPENDS_MAX) + ["read"] * random.randint(0, READINGS_MAX)
    random.shuffle(steps)
    for step in steps:
        of_list = random.randrange(orders.lists)
        if step == "append":
            value = next(values)
            notes.note("append", list=of_list, value=value)
            lists.append(of_list, value)
        elif (reading := lists.read(of_list)) is not None:
            notes.reading(reading)
    for value, offset in lists.flush().items():
        notes.note("acked", value=value, offset=offset)
    is_commit = random.random() >= ABORTED_SHARE
    notes.note("asked", commit=is_commit)
    lists.end(is_commit=is_commit)
    notes.note("told", commit=is_commit)


def main() -> int:
    """Do transactions until SIGTERM. Return the exit status."""
    orders = Orders.loads(sys.argv[1])
    random, stopping, values = Random(orders.seed), _Stopping(), count(orders.first_value)
    notes = _Notes(Path(orders.events))
    faulthandler.dump_traceback_later(STEP_SECONDS_MAX, exit=True)
    has_session = False
    with opened_lists(orders.client, orders.address, orders.transactional_id) as lists:
        print("ready", flush=True)
        # The last one that failed leaves something open, which the next session aborts.
        while not (stopping.is_asked and has_session):
            faulthandler.dump_traceback_later(STEP_SECONDS_MAX, exit=True)
            try:
                if not has_session:
                    lists.begin_session()
                    has_session = True
                _transact(lists, notes, orders, random, values)
            except Refused as refused:
                # What was asked for may be done or not.
                notes.note("failed", why=str(refused))
                has_session = False
    return 0


if __name__ == "__main__":
    sys.exit(main())
