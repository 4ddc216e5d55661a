"""Clients that watch the transaction coordinators hear where each is, and when that changes."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import broker.cluster.shards
from broker.cluster.placement import worker
from broker.pulsar.coordinator_watches import WATCHES_MAX
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.rooms import Rooms, rooms
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.duty import shard_name

Type = pb.BaseCommand.Type
COUNT = 16


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.cluster.shards, "TELL_SECONDS_MIN", 0)


async def told(client: WireClient, watch_id: int = 7) -> list[str]:
    """The addresses in the next update, by shard."""
    update = await client.receive()
    assert update.type == Type.WATCH_TC_ASSIGNMENTS_UPDATE
    content = update.watch_tc_assignments_update
    assert content.watch_id == watch_id
    assert not content.HasField("error")
    assert content.snapshot.parallelism == COUNT
    assert [assignment.tc_id for assignment in content.snapshot.assignments] == list(range(COUNT))
    return [assignment.broker_service_url for assignment in content.snapshot.assignments]


async def share(*brokers: Rooms) -> None:
    """Make the brokers members that share the shards."""
    for each in brokers:
        await each.register()
    await wait_all_tasks_blocked()


def expected(own: str, *brokers: Rooms) -> list[str]:
    members = brokers[0].members.live
    owners = [worker(shard_name(number), members) for number in range(COUNT)]
    me = brokers[0].claims.broker_id
    return [own if owner == me else f"pulsar://{owner}:6650" for owner in owners]


async def test_a_broker_alone_names_itself_once() -> None:
    """T10: by the address that the client has reached, also before it has claimed a shard."""
    async with (
        rooms(MemoryStore(), SimulatedFiles(seed=5)) as alone,
        listening(alone) as listener,
        connected(listener) as client,
        trio.open_nursery() as nursery,
    ):
        own = f"pulsar://127.0.0.1:{listener.socket.getsockname()[1]}"
        await client.send(commands.watch_tc_assignments(7))
        assert await told(client) == [own] * COUNT
        nursery.start_soon(alone.shards.run)
        await wait_all_tasks_blocked()
        assert all(alone.shards.is_mine(number) for number in range(COUNT))
        await client.receives_nothing_more()
        nursery.cancel_scope.cancel()


async def test_clients_follow_the_shards() -> None:
    """C16, T10: a broker comes, and dies. The clients of the other one hear where the shards are."""
    store = MemoryStore()
    async with (
        rooms(store, SimulatedFiles(seed=5), broker_id="left") as left,
        listening(left) as listener,
        connected(listener) as client,
        trio.open_nursery() as nursery,
    ):
        own = f"pulsar://127.0.0.1:{listener.socket.getsockname()[1]}"
        await share(left)
        nursery.start_soon(left.shards.run)
        await wait_all_tasks_blocked()
        await client.send(commands.watch_tc_assignments(7))
        assert await told(client) == [own] * COUNT
        files = SimulatedFiles(seed=6)
        async with rooms(store, files, broker_id="right") as right, trio.open_nursery() as of_right:
            await share(right)
            of_right.start_soon(right.shards.run)
            spread = expected(own, left)
            assert set(spread) == {own, "pulsar://right:6650"}
            while await told(client) != spread:
                pass
            await client.send(commands.watch_tc_assignments(8))
            assert await told(client, 8) == spread
            await client.send(commands.watch_tc_assignments_close(8))
            await client.send(commands.watch_tc_assignments_close(9))
            of_right.cancel_scope.cancel()
        while await told(client) != [own] * COUNT:
            pass
        await client.send(commands.watch_tc_assignments_close(7))
        await client.ask(commands.new_txn(1, 0, 1000))
        async with rooms(store, files.kill(), broker_id="right") as right:
            await share(right)
            await client.receives_nothing_more()
        nursery.cancel_scope.cancel()


async def test_a_transaction_lives_at_any_coordinator() -> None:
    """T10: a client that has not heard of the owner is served, and the owner's broker as well."""
    store = MemoryStore()
    async with (
        rooms(store, SimulatedFiles(seed=5), broker_id="left") as left,
        rooms(store, SimulatedFiles(seed=6), broker_id="right") as right,
        listening(left) as at_left,
        listening(right) as at_right,
        connected(at_left) as first,
        connected(at_right) as second,
        trio.open_nursery() as nursery,
    ):
        await share(left, right)
        for each in (left, right):
            nursery.start_soon(each.shards.run)
        await wait_all_tasks_blocked()
        for number in range(COUNT):
            opened = (await first.ask(commands.new_txn(1, number, 1000))).new_txn_response
            assert not opened.HasField("error")
            txn = (opened.txnid_most_bits, opened.txnid_least_bits)
            ended = (await second.ask(commands.end_txn(2, txn, commit=True))).end_txn_response
            assert not ended.HasField("error")
        nursery.cancel_scope.cancel()


async def test_a_connection_has_a_bounded_number_of_watches() -> None:
    """E8: the refusal is in an update's own error field."""
    async with (
        rooms(MemoryStore(), SimulatedFiles(seed=5)) as alone,
        listening(alone) as listener,
        connected(listener) as client,
    ):
        for number in range(WATCHES_MAX):
            await client.send(commands.watch_tc_assignments(number))
            await told(client, number)
        await client.send(commands.watch_tc_assignments(0))
        await told(client, 0)
        refused = await client.ask(commands.watch_tc_assignments(WATCHES_MAX))
        assert refused.watch_tc_assignments_update.error == pb.NotAllowedError
