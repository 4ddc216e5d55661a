"""The command line: `tidewire broker | topics | produce | consume | txn | metadata | demo`."""

from tidewire.cli.app import main

__all__ = ["main"]
