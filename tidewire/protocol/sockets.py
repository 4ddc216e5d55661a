"""The socket options of a client's connection. They are names and values, because this package opens no socket.

    for level, option, value in SOCKET_OPTIONS:
        if hasattr(socket, option):
            connected.setsockopt(getattr(socket, level), getattr(socket, option), value)

Linux has all these options. A system that lacks one uses its own default, which is longer.
"""

from typing import Final

KEEP_ALIVE_IDLE_SECONDS: Final = 20
"""How long a peer may be silent before the kernel probes it."""

KEEP_ALIVE_INTERVAL_SECONDS: Final = 5
"""How long the kernel waits between two probes."""

UNACKNOWLEDGED_SECONDS_MAX: Final = 30
"""How long sent bytes may stay unacknowledged before the kernel closes the connection."""

SOCKET_OPTIONS: Final = (
    # Send a small packet at once.
    ("IPPROTO_TCP", "TCP_NODELAY", 1),
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", KEEP_ALIVE_IDLE_SECONDS),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", KEEP_ALIVE_INTERVAL_SECONDS),
    ("IPPROTO_TCP", "TCP_USER_TIMEOUT", UNACKNOWLEDGED_SECONDS_MAX * 1000),
)
"""Level, option and value, in the order in which they are set."""
