"""Well-formed commands that make no sense: all kinds, with drawn fields, in any order, among some sensible ones.

Three connections send a drawn story one after another, and each leaves in the middle. Each command is answered by the
protocol's own error, or has its documented effect. No command is unexpected for the broker
(docs/design.md#invariants, 7), and an older connection notices nothing.
"""

import random
from contextlib import suppress

import pytest
import trio
from structlog.testing import capture_logs

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.drawn_commands import SEGMENT, drawn_frame
from tests.support.rooms import TOPIC, Rooms, rooms
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

COMMANDS_PER_CONNECTION = 120


async def misbehave(client: WireClient, broker: Rooms, chance: random.Random) -> None:
    """Send a drawn story while reading all answers; then leave without a command."""

    async def read() -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await client.stream.receive_some():
                continue

    async def split() -> None:
        with suppress(Exception):
            await broker.controller.split(TOPIC, chance.randrange(4))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await client.send(commands.producer(SEGMENT, 1, 1, name="p"))
        await client.send(commands.subscribe(SEGMENT, "s", 1, 1, sub_type=pb.CommandSubscribe.Shared))
        await client.send(commands.flow(1, 1_000))
        with suppress(trio.BrokenResourceError):
            for number in range(COMMANDS_PER_CONNECTION):
                await client.stream.send_all(drawn_frame(chance))
                if number == COMMANDS_PER_CONNECTION // 2:
                    nursery.start_soon(split)
                if chance.random() < 0.3:
                    await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(25, 37))
async def test_no_command_surprises_the_broker(seed: int) -> None:
    """Nothing unexpected is logged, and another connection can still publish."""
    chance = random.Random(seed)
    with capture_logs() as logs:
        async with rooms(MemoryStore(), SimulatedFiles(seed=seed)) as broker, listening(broker) as listener:
            await broker.controller.create_topic(TOPIC, 2, {})
            async with connected(listener) as other:
                await other.produce(1, "persistent://public/default/good")
                for _ in range(3):
                    async with connected(listener) as client:
                        await misbehave(client, broker, chance)
                await other.publish(1, 7)
                assert (await other.receive()).send_receipt.sequence_id == 7
    assert [entry for entry in logs if entry["log_level"] in {"error", "critical"}] == []
