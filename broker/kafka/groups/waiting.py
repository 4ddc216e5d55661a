"""Joins and syncs that wait for their answers, by ticket.

Whoever waits may be cancelled. Its member stays in the group, as in Kafka. A broker cannot tell a client that is gone
from one that connects again, and the group's timeouts remove the former.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

import trio

from broker.kafka.groups.values import JoinAnswer, SyncAnswer

Answer = TypeVar("Answer", JoinAnswer, SyncAnswer)


@dataclass(eq=False, slots=True)
class _Waiter(Generic[Answer]):
    event: trio.Event = field(default_factory=trio.Event)
    answer: Answer | None = None


class Waiting(Generic[Answer]):
    """Requests of one kind."""

    def __init__(self) -> None:
        self._tickets = count(1)
        self._waiters: dict[int, _Waiter[Answer]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def answered(self, ask: Callable[[int], None]) -> Answer:
        """Ask with a new ticket, and return the answer when it comes."""
        ticket, waiter = next(self._tickets), _Waiter[Answer]()
        self._waiters[ticket] = waiter
        try:
            ask(ticket)
            await waiter.event.wait()
        finally:
            del self._waiters[ticket]
        assert waiter.answer is not None, "the event says that there is an answer"
        return waiter.answer

    def tell(self, ticket: int, answer: Answer) -> None:
        """Give the answer. No effect if nobody waits for it any more."""
        waiter = self._waiters.get(ticket)
        if waiter is not None:
            waiter.answer = answer
            waiter.event.set()
