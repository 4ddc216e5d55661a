"""The messages of `tidewire produce` whose receipts have not been counted, in order and bounded.

A receipt keeps its message. Messages of one segment may wait for long while those of others are answered. So the bounds
here hold for all whose receipts stand behind the oldest unanswered one.
"""

from collections import deque
from typing import Final

import tidewire
from tidewire.cli.live import Rate

MESSAGES_MAX: Final = 10_000
BYTES_MAX: Final = 64 * 1024 * 1024
"""At these bounds, the next line is read when the oldest message is durable."""


class Receipts:
    """See the module's docstring."""

    def __init__(self, durable: Rate) -> None:
        """Count durable messages in `durable`."""
        self._durable = durable
        self._waiting: deque[tuple[tidewire.Receipt, int]] = deque()
        self._bytes = 0

    async def add(self, receipt: tidewire.Receipt, size: int) -> None:
        """Add the receipt of a message of that size. Wait while there are too many.

        Raises:
            TidewireError: one of the messages failed.
        """
        self._waiting.append((receipt, size))
        self._bytes += size
        while self._waiting and (self._is_full or self._waiting[0][0].is_answered):
            await self._count_oldest()

    async def all_durable(self) -> None:
        """Return when all messages are durable.

        Raises:
            TidewireError: one of the messages failed.
        """
        while self._waiting:
            await self._count_oldest()

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) > MESSAGES_MAX or self._bytes > BYTES_MAX

    async def _count_oldest(self) -> None:
        receipt, size = self._waiting[0]
        await receipt
        self._waiting.popleft()
        self._bytes -= size
        self._durable.count(size)

    def give_up(self) -> int:
        """Count what is answered, because Ctrl-C ended the work. Return how many messages may or may not be durable."""
        unknown = 0
        for receipt, size in self._waiting:
            if receipt.is_answered:
                self._durable.count(size)
            else:
                unknown += 1
        self._waiting.clear()
        return unknown
