"""Who writes a ledger: named in the records of ledgers and in the files of journals. Pure."""

from typing import NamedTuple


class Epoch(NamedTuple):
    """One life of one broker's journal."""

    number: int
    """Rises with every life. The fence of the next number ends this one."""
    stream: int
    """A random number of this life alone. Two copies of a folder can reach the same number, never the same stream."""


class Writer(NamedTuple):
    """The life of a journal that an open ledger's entries are in."""

    folder: str
    """Identity of the data folder."""
    broker: str
    """Id of the broker, which names the journal's place in that folder."""
    epoch: int
    stream: int
    """See `Epoch`."""

    @property
    def life(self) -> Epoch:
        """The epoch, told from the same number in a copy of the folder."""
        return Epoch(self.epoch, self.stream)
