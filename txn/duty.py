"""Which of the brokers does the work that no client asks for: ending transactions on time, and forgetting them.

Each piece of work has a key. For a transaction's header this is its coordinator's shard, `coordinator://<n>`. For a
group it is the key of its record. At each moment at most one broker considers a key its own, and after a change of the
cluster some broker soon does. Two that do so for a moment do no harm, because every step is conditional (T8, T10).
"""

from collections.abc import Callable
from typing import Final, Protocol

from storage.entry import TxnId

SHARDS: Final = "coordinator://"
"""What the names of all shards begin with."""


class Duty(Protocol):
    """This process's part of the work."""

    @property
    def is_alone(self) -> bool:
        """Whether no other broker ever used the store, so that all of its stamps are of this broker's clock."""

    def is_mine(self, key: str) -> bool:
        """Whether this process does the work of this key."""

    async def see_to(self, key: str) -> None:
        """See to it that the work of this key goes to another process, if the one that does it has certainly ended.

        Raises:
            StoreUnavailable: the store does not answer.
        """

    def attach(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever an answer of the other methods may have changed. It must not block."""


class _Everything:
    """The duty of a process that shares the store with nobody."""

    @property
    def is_alone(self) -> bool:
        return True

    def is_mine(self, _key: str) -> bool:
        return True

    async def see_to(self, _key: str) -> None:
        """Do nothing: this process lives."""

    def attach(self, _listener: Callable[[], None]) -> None:
        """Do nothing: no answer changes."""


EVERYTHING: Final[Duty] = _Everything()


def shard_name(tc_id: int) -> str:
    """The name of a coordinator's shard."""
    return f"{SHARDS}{tc_id}"


def shard_of(txn: TxnId) -> str:
    """The shard of the coordinator that opened the transaction."""
    return shard_name(txn.most)
