"""Messages that were sent in pieces, an entry each: who is getting the chunks of which message.

Whoever puts a message together needs all of its chunks, so the first one that is sent decides who gets the others: from
then until its last chunk is sent, the message is begun, and all of its chunks go to one consumer. When that one leaves,
everything of it that is not acknowledged is sent again, and whoever gets the first of that gets all of it.

A producer that died, or went on to another segment, leaves its message begun for good. So no more than BEGUN_MAX are
remembered, and when there is one more, the one that went on longest ago is forgotten. Should a chunk of it still come,
it goes to whoever's turn it is: the message is then with two consumers, of whom neither can finish it, and comes
together only when it is sent again, after both have gone or given it back.

Pure.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

BEGUN_MAX: Final = 10_000
"""Begun messages that are remembered, of one subscription. A producer has one at a time."""

KEPT_MAX: Final = 10_000
"""Chunks that may wait for room at the consumer that has their beginning, of one subscription. Then nothing new is sent
to anybody until one of these consumers has made room or left."""


class Chunk(NamedTuple):
    """That an entry is a part of a message."""

    message: int
    """Which one. Two may have the same number, at the cost of being sent to the same consumer."""
    is_last: bool
    """Whether it is the message's last one."""


Holder = TypeVar("Holder", bound=Hashable)


class PartialMessages(Generic[Holder]):
    """The partly sent messages of one subscription, and who gets them. Holders are told from others by identity."""

    def __init__(self) -> None:
        self._holders: OrderedDict[int, Holder] = OrderedDict()
        """By message; the one that went on last stands last."""

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._holders)

    def holder(self, message: int) -> Holder | None:
        """Who gets the chunks of the message; None if it is not begun."""
        return self._holders.get(message)

    def sent(self, chunk: Chunk, holder: Holder) -> None:
        """`holder` has been sent the chunk."""
        if chunk.is_last:
            self._holders.pop(chunk.message, None)
            return
        self._holders[chunk.message] = holder
        self._holders.move_to_end(chunk.message)
        if len(self._holders) > BEGUN_MAX:
            self._holders.popitem(last=False)

    def left(self, holder: Holder) -> None:
        """`holder` is gone: others may get what it began."""
        for message in [message for message, its in self._holders.items() if its is holder]:
            del self._holders[message]
