"""The lists of hidden entries beside the closed ledgers of a managed ledger (`hidden_entries.py`)."""

from storage.hidden_entries import Hidden, HiddenEntries
from storage.ledger_chain import LedgerChain


class HiddenLists:
    """See the module's docstring. A list may be lost, and is then found missing."""

    __slots__ = ("_chain",)

    def __init__(self, chain: LedgerChain) -> None:
        """Set up for the managed ledger with these ledgers."""
        self._chain = chain

    async def total(self, ledger: int) -> Hidden | None:
        """How much is hidden in a closed ledger, if an owner has written it down."""
        return await self._chain.store.load_hidden_total(ledger)

    async def load(self, ledger: int) -> HiddenEntries | None:
        """The hidden entries of a closed ledger, if an owner has written them down."""
        return await self._chain.store.load_hidden(ledger)

    async def write(self, ledger: int, hidden: HiddenEntries) -> None:
        """Write down the hidden entries of a closed ledger in which everything is decided.

        A ledger that was trimmed or is being deleted is skipped.

        Raises:
            NoSpace: there is no space for it.
        """
        await self._chain.store_hidden(ledger, hidden)
