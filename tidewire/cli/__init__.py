"""The command line: `tidewire`, with the commands that `app` lists."""

from tidewire.cli.app import main

__all__ = ["main"]
