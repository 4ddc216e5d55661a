"""What one copier's process is told to do, and how its life may end."""

import json
import signal
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Final, Self

from tests.support.kafka_copiers.steps import Death

RECORDS_MAX: Final = 12
"""In one transaction."""
DOOMED_SHARE: Final = 0.15
"""Of the transactions, that a copier aborts by itself."""
SESSION_MS: Final = 6_000
"""The shortest that brokers take. A member that died is missed for that long, unless its heir has its instance id."""
TRANSACTION_MS: Final = 10_000
CALL_SECONDS_MAX: Final = 30.0


class Fenced(Exception):
    """Another process has this one's transactional id, or the coordinator has ended its transaction in time."""


class Replaced(Exception):
    """Another process has this one's place in the group: its instance id."""


@dataclass(frozen=True)
class Orders:
    """What one copier does."""

    client: str
    """"confluent" or "aiokafka"."""
    address: str
    source: str
    target: str
    partitions: int
    group: str
    instance: str | None
    """A static member's name."""
    strategy: str
    name: str
    """Of the copier. All its lives have the same transactional id."""
    seed: str
    """Of this life."""
    death: Death | None

    def dumps(self) -> str:
        """Return them as JSON."""
        return json.dumps(asdict(self) | {"death": self.death})

    @classmethod
    def loads(cls, text: str) -> Self:
        """Undo `dumps`."""
        fields = json.loads(text)
        death = fields.pop("death")
        return cls(**fields, death=None if death is None else Death(*death))


class Stopping:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.is_asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True
