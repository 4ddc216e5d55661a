"""The writer of a ledger, named in the records of ledgers and in the files of journals. Pure."""

from typing import NamedTuple


class Epoch(NamedTuple):
    """One life of one broker's journal."""

    number: int
    """Each new life has a higher number. The fence of the next number ends this life."""
    stream: int
    """A random number of this life. Two copies of a folder may reach the same epoch number, but never the same stream.
    """


class Writer(NamedTuple):
    """The life of the journal that holds an open ledger's entries."""

    folder: str
    """Identity of the data folder."""
    broker: str
    """Id of the broker. It names the journal's place in that folder."""
    epoch: int
    stream: int
    """See `Epoch`."""

    @property
    def life(self) -> Epoch:
        """The epoch, distinct from the same epoch number in a copy of the folder."""
        return Epoch(self.epoch, self.stream)
