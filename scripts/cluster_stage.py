"""What the measurements of a cluster share: brokers on a new folder and a metadata store, and what is asked of them."""

import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import orjson

from scripts.need import place
from scripts.process_usage import cpu_seconds
from tests.support.http import request
from tests.support.real_cluster import EMBEDDED, RealCluster, running_cluster
from tidewire.cli.local_etcd import EtcdProcess

STORES: Final = ("etcd", "embedded")
SESSION_SECONDS: Final = 2
"""The shortest session that a broker may have."""


class Stage:
    """A running cluster, and the etcd that it uses, if it uses one."""

    def __init__(self, cluster: RealCluster, etcd_pid: int | None) -> None:
        self.cluster = cluster
        self.etcd_pid = etcd_pid

    async def ask(self, broker: str, method: str, path: str, content: object = None) -> None:
        """Ask a broker for something over HTTP, and wait until it is done."""
        body = b"" if content is None else orjson.dumps(content)
        answer = await request(self.cluster[broker].http, method, f"/admin/v2{path}", body=body)
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {answer.body!r:.300}")

    async def create(self, topic: str, segments: int = 1) -> None:
        """Create a scalable topic."""
        path = f"/scalable/{topic.removeprefix('topic://')}?numInitialSegments={segments}"
        await self.ask(self.cluster.answering[0], "PUT", path)

    async def segments(self, topic: str) -> list[str]:
        """The names of the topic's segments that some broker owns, in the order of their keys."""
        prefix = topic.replace("topic://", "segment://") + "/"
        return sorted(name for name in await self.cluster.claims() if name.startswith(prefix))

    async def move(self, name: str, broker: str) -> None:
        """Hand a topic over to this broker."""
        await self.ask(self.cluster.answering[0], "POST", "/cluster/move", {"topic": name, "to": broker})

    async def revision(self, broker: str) -> float:
        """The revision of the metadata that this broker holds."""
        answer = await request(self.cluster[broker].http, "GET", "/metrics")
        return metric(answer.body.decode(), "tidewire_metadata_revision")

    def log_bytes(self) -> int:
        """The size of the embedded metadata log, without the zeros ahead of its writer; 0 on another store."""
        folder = self.cluster.data_dir / "metadata"
        logs = [path for path in folder.glob("*") if path.suffix in {".log", ".closed-log"}]
        return sum(len(path.read_bytes().rstrip(b"\0")) for path in logs)

    def cpu(self, *brokers: str) -> float:
        """The CPU seconds that these brokers have used, all together."""
        return sum(cpu_seconds(self.cluster[broker].pid) for broker in brokers)


def metric(exposition: str, name: str) -> float:
    """A metric's value, in the answer to GET /metrics."""
    for line in exposition.splitlines():
        if line.startswith((name + " ", name + "{")):
            return float(line.rpartition(" ")[2])
    raise SystemExit(f"there is no metric {name}")


@asynccontextmanager
async def stage(store: str, brokers: Sequence[str], *, settings: str = "") -> AsyncIterator[Stage]:
    """Run brokers on an empty folder, with their metadata in this store. The first one starts before the others."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidewire-bench-")))
        etcd_pid, flags = None, EMBEDDED if len(brokers) > 1 else ()
        if store == "etcd":
            etcd = stack.enter_context(EtcdProcess(folder / "etcd", command=str(place("etcd"))))
            etcd_pid, flags = etcd.pid, ("--metadata", f"etcd://{etcd.endpoint}")
        first, *others = brokers
        async with running_cluster(folder, *flags, brokers=brokers, starting=[first], settings=settings) as cluster:
            await cluster.start(*others)
            yield Stage(cluster, etcd_pid)


def say(text: str) -> None:
    """Tell whoever waits how far the benchmark is."""
    print(f"  {text}", file=sys.stderr, flush=True)
