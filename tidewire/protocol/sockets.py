"""How the kernel is told to watch over a client's connection, as names and values: this package opens no socket.

    for level, option, value in SOCKET_OPTIONS:
        if hasattr(socket, option):
            connected.setsockopt(getattr(socket, level), getattr(socket, option), value)

Linux knows all of these options. A system that lacks one uses its own, longer times.
"""

from typing import Final

KEEP_ALIVE_IDLE_SECONDS: Final = 20
"""How long a peer may be silent before the kernel asks whether it is there."""

KEEP_ALIVE_INTERVAL_SECONDS: Final = 5
"""How long until the kernel asks again."""

UNACKNOWLEDGED_SECONDS_MAX: Final = 30
"""How long what was sent may stay unacknowledged until the kernel gives the peer up."""

SOCKET_OPTIONS: Final = (
    # A small packet is not held back until another one joins it.
    ("IPPROTO_TCP", "TCP_NODELAY", 1),
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", KEEP_ALIVE_IDLE_SECONDS),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", KEEP_ALIVE_INTERVAL_SECONDS),
    ("IPPROTO_TCP", "TCP_USER_TIMEOUT", UNACKNOWLEDGED_SECONDS_MAX * 1000),
)
"""Level, option and value, in the order in which they are set."""
