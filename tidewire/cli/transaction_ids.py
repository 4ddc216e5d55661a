"""Transaction ids as commands print and accept them: COORDINATOR:NUMBER."""

from typing import Final

from tidewire.cli.endings import UsageError

_PARTS: Final = len(("coordinator", "number"))
_LIMIT: Final = 2**64
"""The protocol gives each part 64 bits."""


def format_transaction_id(transaction_id: tuple[int, int]) -> str:
    """Return the id as COORDINATOR:NUMBER."""
    return f"{transaction_id[0]}:{transaction_id[1]}"


def parse_transaction_id(text: str) -> tuple[int, int]:
    """Parse an id that `format_transaction_id` wrote.

    Raises:
        UsageError: the text is not such an id.
    """
    parts = text.split(":")
    if len(parts) != _PARTS or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(
            f"{text!r} is not a transaction id. Give COORDINATOR:NUMBER, as `tidewire transactions begin` prints it."
        )
    coordinator, number = (int(part) for part in parts)
    if max(coordinator, number) >= _LIMIT:
        raise UsageError(f"{text!r} is not a transaction id: its numbers must fit in 64 bits.")
    return coordinator, number
