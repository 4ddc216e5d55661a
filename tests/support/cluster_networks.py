"""A cluster whose brokers reach their metadata store through proxies, which a test makes faulty.

    async with cluster_behind_proxies(tmp_path, "embedded") as (cluster, ways):
        for proxy in ways["two"]:
            proxy.cut()               # broker two reaches nobody that could answer for the store

A broker on etcd connects to etcd. One on the embedded store connects to the controller, whichever broker that is.
"""

import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.proxy import Proxy, open_proxy
from tests.support.real_cluster import BROKERS, RealCluster, running_cluster
from tidewire.cli.local_etcd import free_port

Ways = Mapping[str, Sequence[Proxy]]
"""By broker, every way on which it reaches the store."""


@asynccontextmanager
async def cluster_behind_proxies(
    folder: Path, etcd: str | None, *, settings: str = ""
) -> AsyncIterator[tuple[RealCluster, Ways]]:
    """Run a cluster on `folder`, on the etcd at this HOST:PORT or on the embedded store. See `running_cluster`."""
    async with AsyncExitStack() as stack:
        if etcd is not None:
            proxies = {name: await stack.enter_async_context(open_proxy(etcd)) for name in BROKERS}
            extra = {name: ("--metadata", f"etcd://{proxy.endpoint}") for name, proxy in proxies.items()}
            async with running_cluster(folder, extra=extra, settings=settings) as cluster:
                yield cluster, {name: [proxy] for name, proxy in proxies.items()}
            return
        internal = {name: f"127.0.0.1:{free_port()}" for name in BROKERS}
        ways: dict[str, list[Proxy]] = {name: [] for name in BROKERS}
        commands = {}
        for name in BROKERS:
            routes = {}
            for address in internal.values():
                if address != internal[name]:
                    proxy = await stack.enter_async_context(open_proxy(address))
                    ways[name].append(proxy)
                    routes[address] = proxy.endpoint
            path = folder / f"routes-{name}.json"
            path.write_text(json.dumps(routes))
            commands[name] = (sys.executable, "-m", "tests.support.routed_broker", str(path), "broker")
        extra = {name: ("--internal", address) for name, address in internal.items()}
        async with running_cluster(folder, extra=extra, commands=commands, settings=settings) as cluster:
            yield cluster, ways
