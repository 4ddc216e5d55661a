"""Free ports that follow each other, as several brokers on one machine take them."""

import socket
from contextlib import ExitStack
from random import randrange
from typing import Final

FIRST: Final = 20_000
BEHIND: Final = 32_768
"""From here on, systems give ports to whoever asks for any, so a free one may be taken at any moment."""
TRIES_MAX: Final = 100


def ports_in_a_row(count: int) -> int:
    """Return the first of so many ports on 127.0.0.1. All of them are free at this moment."""
    for _ in range(TRIES_MAX):
        first = randrange(FIRST, BEHIND - count)
        if _are_free(range(first, first + count)):
            return first
    raise OSError(f"no {count} ports in a row are free on 127.0.0.1 between {FIRST} and {BEHIND}")


def _are_free(ports: range) -> bool:
    with ExitStack() as stack:
        for port in ports:
            try:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
