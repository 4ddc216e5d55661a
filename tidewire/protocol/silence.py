"""When a broker that sends nothing counts as gone, without IO or a clock.

A stopped process keeps its connections: its kernel acknowledges whatever arrives, so TCP notices nothing. Meanwhile its
cluster gives its topics to other brokers. So a client asks a silent broker for a sign of life, as Pulsar's clients do.

| since the last received bytes              | the adapter                        |
|--------------------------------------------|------------------------------------|
| less than `seconds`                        | waits                              |
| `seconds`, and no question since           | sends PING, which is the question  |
| `seconds`, and as long since the question  | gives the connection up            |
"""

from enum import Enum
from typing import Final

KEEP_ALIVE_SECONDS: Final = 30.0
"""How long a client lets a broker be silent, and wait for its sign of life, unless it is told otherwise."""


class Verdict(Enum):
    """What to do about a broker's silence."""

    WAIT = "it may be silent until `due`"
    ASK = "send PING"
    GIVE_UP = "end the connection"


class Silence:
    """The silence on one connection. Times are seconds of any clock that only rises."""

    __slots__ = ("_asked_at", "_heard_at", "seconds")

    def __init__(self, seconds: float, now: float) -> None:
        """Begin to listen. The broker may be silent for `seconds`, and for as long again behind a question."""
        self.seconds = seconds
        self._heard_at = now
        self._asked_at: float | None = None

    def heard(self, now: float) -> None:
        """Note that bytes have arrived."""
        self._heard_at = now
        self._asked_at = None

    @property
    def due(self) -> float:
        """The time until which there is nothing to do, unless bytes arrive, which move it."""
        return (self._heard_at if self._asked_at is None else self._asked_at) + self.seconds

    def judge(self, now: float) -> Verdict:
        """Return what to do now. After ASK the question counts as sent."""
        if now < self.due:
            return Verdict.WAIT
        if self._asked_at is not None:
            return Verdict.GIVE_UP
        self._asked_at = now
        return Verdict.ASK
