"""Runs `tidewire broker`. Its connections to other brokers go where a file says, through proxies for instance.

    python -m tests.support.routed_broker ROUTES broker --data-dir ...

ROUTES is a JSON map from HOST:PORT to HOST:PORT, which is read at every connection. An address that is not in it is
connected to as it is. Brokers tell each other their real addresses, and nothing in them knows of proxies. gRPC makes
its own connections, so brokers on etcd are told the proxies' addresses instead.
"""

import json
import sys
from pathlib import Path
from typing import Any

import trio

from tidewire.cli import main


def route(routes: Path) -> None:
    """Let this process's connections take these routes from now on."""
    dial = trio.open_tcp_stream

    async def routed(host: str, port: int, **further: Any) -> trio.SocketStream:
        asked = f"{host}:{port}"
        host, _, number = table().get(asked, asked).rpartition(":")
        return await dial(host, int(number), **further)

    def table() -> dict[str, str]:
        found: dict[str, str] = json.loads(routes.read_text())
        return found

    trio.open_tcp_stream = routed  # type: ignore[assignment]


if __name__ == "__main__":
    route(Path(sys.argv.pop(1)))
    main()
