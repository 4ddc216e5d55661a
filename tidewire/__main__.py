"""`python -m tidewire` is `tidewire`, for whoever has the package and not its command on the path."""

from tidewire.cli.app import main

main()
