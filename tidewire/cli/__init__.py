"""The command line: `tidewire broker | topics | produce | consume | txn | demo`."""

from tidewire.cli.app import main

__all__ = ["main"]
