"""A broker's part of the background work, as the test decides it.

share = Share("coordinator://0", is_alone=False)
transactions = Transactions(metadata, settings, now_ms, share)
share.give("coordinator://1")          # from now on also this one's work
"""

from collections.abc import Callable


class Share:
    """See the module's docstring. It is a `txn.duty.Duty`."""

    def __init__(self, *keys: str, is_alone: bool = False) -> None:
        self.keys = set(keys)
        self._is_alone = is_alone
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_alone(self) -> bool:
        return self._is_alone

    def is_mine(self, key: str) -> bool:
        return key in self.keys

    async def see_to(self, _key: str) -> None:
        """Do nothing: the test decides whose work it is."""

    def attach(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def give(self, *keys: str) -> None:
        """Add to this broker's work."""
        self.keys.update(keys)
        self._tell()

    def take(self, *keys: str) -> None:
        """Take from this broker's work."""
        self.keys.difference_update(keys)
        self._tell()

    def join(self) -> None:
        """Let another broker come."""
        self._is_alone = False
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
