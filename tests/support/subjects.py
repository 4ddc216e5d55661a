"""What the suite of the client `tidewire` runs against: a broker of ours, or with `--against pulsar` an Apache Pulsar.

The tests are the same; they ask for the fixture `broker` and get either. What only a process of ours can do (be killed
and come back on its data) they ask of `mortal`, and are left out against Pulsar.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from scripts.reference_pulsar import running_pulsar
from tests.support.processes import running_broker

SubjectName: TypeAlias = Literal["tidewire", "pulsar"]
NAMES: Final[tuple[str, ...]] = get_args(SubjectName)


@dataclass(frozen=True, slots=True)
class Subject:
    """A running broker, as its clients see it."""

    name: SubjectName
    service_url: str
    http_url: str
    patience_seconds: float
    """What is promised at once comes sooner than this; a Pulsar may wait for one of its grace periods, of a minute."""


@contextmanager
def running_subject(name: str, folder: Path) -> Iterator[Subject]:
    """The broker of that name with its data in `folder`, ready, and ended with the block."""
    if name == "pulsar":
        with running_pulsar(folder) as pulsar:
            yield Subject("pulsar", pulsar.service_url, pulsar.http_url, 75)
    else:
        # One story has a consumer that vanishes, under a name that nobody comes back by.
        with running_broker(folder, "--consumer-session-grace-seconds", "0.2") as broker:
            yield Subject("tidewire", broker.service_url, broker.http_url, 15)
