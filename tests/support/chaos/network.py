"""The networks of a cluster on one machine: a proxy for each way that one process reaches another.

    network = Network(); await network.open(nursery, brokers, members)
    network.clients["one"].endpoint            # where clients reach broker one
    with network.faulty("cut", "store", "one", random): ...    # broker one does not reach the store, or is not reached

Places: `clients`, between all clients and one broker; `peers`, between brokers over HTTP; `store`, between a broker and
the members of etcd, or between brokers that share an embedded store. Ways between brokers have a direction. So a broker
can be cut off in one direction alone.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import trio

from tests.support.proxy import Proxy, start_proxy

DELAYS: Final = (0.02, 0.3)
"""The least and the longest delay, in seconds, of everything that passes."""

NOWHERE: Final = "127.0.0.1:9"


class Network:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.clients: dict[str, Proxy] = {}
        """By broker, for Pulsar's protocol."""
        self.kafka: dict[str, Proxy] = {}
        """By broker, for Kafka's protocol."""
        self.peers: dict[tuple[str, str], Proxy] = {}
        """By the broker that connects and the one that it connects to."""
        self.store: dict[tuple[str, str], Proxy] = {}
        """By the broker that connects, and the other broker or the member of etcd."""
        self._faulty: set[Proxy] = set()

    async def open(self, nursery: trio.Nursery, brokers: Iterable[str], members: Mapping[str, str]) -> None:
        """Open all proxies. `members` are the addresses of etcd's members; empty if brokers share an embedded store."""
        names = list(brokers)
        for name in names:
            self.clients[name] = await start_proxy(nursery, NOWHERE)
            self.kafka[name] = await start_proxy(nursery, NOWHERE)
            for other in names:
                if other != name:
                    self.peers[name, other] = await start_proxy(nursery, NOWHERE)
                    if not members:
                        self.store[name, other] = await start_proxy(nursery, NOWHERE)
            for member, address in members.items():
                self.store[name, member] = await start_proxy(nursery, address)

    def routes(self, source: str) -> dict[str, str]:
        """Return the proxies that lead from this broker to others, by the addresses behind them."""
        found = [
            proxy for table in (self.peers, self.store) for (start, _end), proxy in table.items() if start == source
        ]
        return {proxy.server: proxy.endpoint for proxy in found}

    def write_routes(self, path: Path, source: str) -> None:
        """Write the routes of this broker, for `routed_broker`."""
        unfinished = path.with_name(path.name + ".unfinished")
        unfinished.write_text(json.dumps(self.routes(source)))
        unfinished.replace(path)

    @contextmanager
    def faulty(self, fault: str, place: str, broker: str, random: Random) -> Iterator[int]:
        """Make a place of a broker faulty for the length of the block. Yield how many ways that are.

        Ways that are faulty already are left alone.
        """
        ways = [proxy for proxy in self._ways(place, broker, random) if proxy not in self._faulty]
        delay = random.uniform(*DELAYS)
        self._faulty.update(ways)
        for proxy in ways:
            match fault:
                case "cut":
                    proxy.cut()
                case "mute":
                    proxy.mute()
                case "hold":
                    proxy.hold()
                case "delay":
                    proxy.delay(delay)
                case "half":
                    proxy.half_close()
                case _:
                    raise ValueError(f"there is no fault {fault}")
        try:
            yield len(ways)
        finally:
            for proxy in ways:
                proxy.mend()
            self._faulty.difference_update(ways)

    def _ways(self, place: str, broker: str, random: Random) -> list[Proxy]:
        if place == "clients":
            return [self.clients[broker], self.kafka[broker]]
        table = {"peers": self.peers, "store": self.store}[place]
        leaving = [proxy for (start, _end), proxy in table.items() if start == broker]
        arriving = [proxy for (_start, end), proxy in table.items() if end == broker]
        if arriving:
            return random.choice((leaving, arriving, leaving + arriving))
        # Of etcd's members it loses all, or one.
        return random.choice((leaving, leaving, [random.choice(leaving)]))
