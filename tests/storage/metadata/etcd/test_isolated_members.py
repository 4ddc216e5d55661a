"""A member of etcd that runs, but has lost the others."""

from pathlib import Path

import trio

from scripts.need import place
from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.rpc import Rpc, RpcError
from tests.support.etcd_nodes import NAMES, EtcdNodes


async def test_a_watch_ends_at_a_member_that_has_no_leader(tmp_path: Path) -> None:
    """C13: it delivers nothing, but answers. So the watch stayed there, although the other members went on."""
    with EtcdNodes(tmp_path, str(place("etcd"))) as etcd:
        alone, *others = NAMES
        rpc = Rpc([etcd.endpoints[alone]])
        has_begun = trio.Event()
        ended: list[RpcError | None] = []

        def receive(response: pb.WatchResponse) -> bool:
            has_begun.set()
            return True

        async def watch() -> None:
            ended.append(await rpc.watch(pb.WatchCreateRequest(key=b"key"), receive, seconds_max=30))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await has_begun.wait()
                for name in others:
                    await trio.to_thread.run_sync(etcd.nodes[name].kill)
        rpc.close()
        assert [error is not None and "no leader" in error.details for error in ended] == [True]
