"""Commands that speak to a broker through `tidewire.client`: one event loop, and its errors as one sentence.

Kept apart from the commands' own modules because it imports the client, which only a command that runs has to pay for.
"""

from collections.abc import Awaitable, Callable

import anyio

import tidewire
from tidewire.cli.endings import EXIT_INTERRUPTED, CommandFailed, UsageError


def run_client(service_url: str, story: Callable[[tidewire.Client], Awaitable[None]]) -> None:
    """Connect to the broker at `service_url`, do `story` and disconnect.

    Raises:
        UsageError: a name or address is none.
        CommandFailed: the broker could not be reached, or refused.
    """

    async def connected() -> None:
        async with tidewire.connect(service_url) as client:
            await story(client)

    try:
        anyio.run(connected)
    except tidewire.InvalidName as error:
        raise UsageError(f"{error}.") from error
    except tidewire.TidewireError as error:
        raise CommandFailed(f"{str(error).rstrip('.')}.") from error
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def format_transaction_id(transaction_id: tuple[int, int]) -> str:
    """As commands print it and take it: COORDINATOR:NUMBER."""
    return f"{transaction_id[0]}:{transaction_id[1]}"


def parse_transaction_id(text: str) -> tuple[int, int]:
    """Read what `format_transaction_id` wrote.

    Raises:
        UsageError: it is written otherwise.
    """
    parts = text.split(":")
    if len(parts) != len(("coordinator", "number")) or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(
            f"{text!r} is no transaction's id; expected COORDINATOR:NUMBER, as `tidewire txn begin` prints it."
        )
    coordinator, number = (int(part) for part in parts)
    if max(coordinator, number) >= 2**64:
        raise UsageError(f"{text!r} is no transaction's id; its numbers have at most 64 bits.")
    return coordinator, number
