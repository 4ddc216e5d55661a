"""`python -m tidewire.cli` is `tidewire`."""

from tidewire.cli.app import main

main()
