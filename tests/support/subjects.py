"""The broker that the suite of the client `tidewire` runs against: Tidewire, or Apache Pulsar with `--against pulsar`.

The tests are the same: they use the fixture `broker`, which is either of them. Tests that need a Tidewire process
(killed and restarted on its data) use `mortal`, and do not run against Pulsar.
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
    """Run the named broker with its data in `folder`. It is ready, and ends with the block."""
    if name == "pulsar":
        with running_pulsar(folder) as pulsar:
            yield Subject("pulsar", pulsar.service_url, pulsar.http_url, 75)
    else:
        # One story has a consumer that vanishes, under a name that nobody comes back by.
        with running_broker(folder, "--consumer-session-grace-seconds", "0.2") as broker:
            yield Subject("tidewire", broker.service_url, broker.http_url, 15)
