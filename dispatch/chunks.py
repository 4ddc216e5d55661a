"""Messages that were sent in chunks, one entry each: which consumer gets the chunks of which message.

A consumer needs all chunks of a message to reassemble it. So the consumer that gets the first chunk gets the others,
too. From then until its last chunk is sent, the message is begun, and all of its chunks go to that consumer. If the
consumer leaves, every unacknowledged chunk is sent again, and the consumer that gets the first of them gets all of
them.

A producer that died, or moved to another segment, leaves its message begun forever. So at most BEGUN_MAX begun messages
are remembered. Beyond that, the one that was inactive for longest is forgotten. A later chunk of it goes to any
consumer. Then two consumers hold parts of the message, and neither can finish it. It is completed only when it is sent
again, after both have left or given it back.

Pure.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

BEGUN_MAX: Final = 10_000
"""Begun messages that one subscription remembers. A producer has one at a time."""

KEPT_MAX: Final = 10_000
"""Chunks of one subscription that may wait for room at the consumer with their beginning. Beyond that, nothing new is
sent to anybody until one of these consumers has room or leaves."""


class Chunk(NamedTuple):
    """Marks an entry as a part of a message."""

    message: int
    """Which message. Two may have the same number; they then go to the same consumer."""
    is_last: bool
    """Whether it is the message's last one."""


Holder = TypeVar("Holder", bound=Hashable)


class PartialMessages(Generic[Holder]):
    """The partly sent messages of one subscription, and who gets them. Holders compare by identity."""

    def __init__(self) -> None:
        self._holders: OrderedDict[int, Holder] = OrderedDict()
        """By message. The most recently active one is last."""

    def __len__(self) -> int:
        """How many messages are remembered."""
        return len(self._holders)

    def holder(self, message: int) -> Holder | None:
        """The consumer that gets the chunks of the message; None if the message is not begun."""
        return self._holders.get(message)

    def sent(self, chunk: Chunk, holder: Holder) -> None:
        """The chunk was sent to `holder`."""
        if chunk.is_last:
            self._holders.pop(chunk.message, None)
            return
        self._holders[chunk.message] = holder
        self._holders.move_to_end(chunk.message)
        if len(self._holders) > BEGUN_MAX:
            self._holders.popitem(last=False)

    def left(self, holder: Holder) -> None:
        """`holder` is gone, so others may get its begun messages."""
        for message in [message for message, its in self._holders.items() if its is holder]:
            del self._holders[message]
