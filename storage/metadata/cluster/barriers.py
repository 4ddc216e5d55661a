"""A follower's questions how far the log is, shared by all callers that wait.

One question is under way at a time. Callers that come meanwhile share the next one, because the answer to a question
covers only what was decided before it was sent. So any number of readers costs one round trip after another, and one
reader alone waits for one. On a new link the question is asked again.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from storage.errors import fresh
from storage.metadata.cluster.messages import Barrier
from storage.metadata.store import MetadataError, StoreUnavailable
from storage.signal import Signal

ANSWER_SECONDS_MAX: Final = 20.0
"""How long a read waits for the controller before it raises StoreUnavailable. An ordinary failover takes less."""


class _Question:
    """What callers of the same question wait for."""

    __slots__ = ("answered", "sequence")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.sequence: int | None = None
        """How far the image must be; None before the controller has answered."""


class Barriers:
    """The questions of one process."""

    def __init__(self) -> None:
        self.asked = 0
        """How many questions were sent."""
        self._next: _Question | None = None
        """Not sent yet, so callers may join."""
        self._sent: _Question | None = None
        """Under way."""
        self._shown = 0
        """The last batch that the image holds."""
        self._wake = Signal()
        self._closed: MetadataError | None = None

    async def passed(self) -> None:
        """Return when this process's image holds everything that was decided before the call.

        Raises:
            StoreUnavailable: there was no answer for ANSWER_SECONDS_MAX, or the store has ended.
        """
        if self._closed is not None:
            raise fresh(self._closed)
        question = self._next
        if question is None:
            question = self._next = _Question()
            self._wake.set()
        with trio.move_on_after(ANSWER_SECONDS_MAX) as waiting:
            await question.answered.wait()
        if waiting.cancelled_caught:
            raise StoreUnavailable(f"the metadata controller gave no answer for {ANSWER_SECONDS_MAX:g} s; try again")
        if self._closed is not None:
            raise fresh(self._closed)

    async def ask(self, send: Callable[[Barrier], Awaitable[None]]) -> None:
        """Send the questions over a new link, until cancelled. The one that was under way goes first.

        Raises:
            LinkLost: the link has ended.
        """
        if self._sent is not None and self._sent.sequence is None:
            await self._send(send)
        while True:
            if self._sent is None and self._next is not None:
                self._sent, self._next = self._next, None
                await self._send(send)
            await self._wake.wait()

    async def _send(self, send: Callable[[Barrier], Awaitable[None]]) -> None:
        self.asked += 1
        await send(Barrier(self.asked))

    def answered(self, asked: int, sequence: int) -> None:
        """The controller had decided every batch up to `sequence` when it saw the question."""
        if self._sent is not None and asked == self.asked:
            self._sent.sequence = sequence
            self._settle()

    def shown(self, sequence: int) -> None:
        """The image holds every batch up to `sequence`."""
        self._shown = sequence
        self._settle()

    def close(self, error: MetadataError) -> None:
        """Answer everything that waits with `error`, and accept nothing more."""
        self._closed = error
        for question in (self._sent, self._next):
            if question is not None:
                question.answered.set()
        self._sent = self._next = None

    def _settle(self) -> None:
        question = self._sent
        if question is not None and question.sequence is not None and question.sequence <= self._shown:
            self._sent = None
            question.answered.set()
            self._wake.set()
