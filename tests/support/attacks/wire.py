"""Attacks over the Pulsar protocol: invalid bytes, and more valid requests than any real client sends."""

import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from typing import Final

import trio

from tests.support.admin import Admin
from tests.support.attacks.attacker import LOST, READ_BYTES, Attacker
from tests.support.attacks.siege import Attack
from tests.support.drawn_commands import PLAIN, SEGMENT, TOPIC, drawn_frame
from tests.support.wire import message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id

Type = pb.BaseCommand.Type

CONNECT: Final = encode_command(commands.connect("attack"))
HALF_OPEN: Final = 300
FLOODING: Final = 200
LARGEST: Final = message(bytes(MAX_MESSAGE_SIZE - 1024))
BAD_PATTERNS: Final = ("(a+)+$", "[", "(" * 500 + ")" * 500, ".*" * 500 + "x", "\\", "(?P<a", "x{1,60000}{1,60000}")


async def random_bytes(attacker: Attacker) -> None:
    """Send random bytes, before and after CONNECT."""

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.stream() as stream:
            if chance.random() < 0.5:
                await stream.send_all(CONNECT)
            await stream.send_all(chance.randbytes(chance.choice((1, 7, 100, 5_000, 100_000))))
            await stream.send_eof()
            await attacker.ends(stream)

    await attacker.in_parallel(8, once)


async def false_sizes(attacker: Attacker) -> None:
    """Send frames with false sizes. A broken frame ends the connection."""
    sizes = (0, 1, 3, 4, 5, 100, 131_073, 1 << 20, MAX_MESSAGE_SIZE + 10_241, 2**31 - 1, 2**31, 2**32 - 1)

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client:
            size, command_size = chance.choice(sizes), chance.choice(sizes)
            await client.stream.send_all(
                struct.pack(">II", size, command_size) + chance.randbytes(chance.randrange(50))
            )
            if size > MAX_MESSAGE_SIZE + 10_240 or command_size > max(0, size - 4):
                await attacker.ends(client.stream)
                attacker.counts["refused frames"] += 1

    await attacker.in_parallel(8, once)


async def mutated_sessions(attacker: Attacker) -> None:
    """Send drawn commands in any order, some of them damaged after they were encoded."""
    with suppress(OSError):
        await trio.to_thread.run_sync(Admin(f"http://{attacker.http}").create, TOPIC, 2)

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client, trio.open_nursery() as reading:
            reading.start_soon(read, client.stream)
            with suppress(*LOST):
                await client.send(commands.producer(chance.choice((SEGMENT, PLAIN)), 1, 1))
                await client.send(commands.subscribe(SEGMENT, "s", 1, 1, sub_type=pb.CommandSubscribe.Shared))
                await client.send(commands.flow(1, 1_000))
                for _ in range(100):
                    frame = bytearray(drawn_frame(chance))
                    attacker.counts["commands"] += 1
                    if chance.random() < 0.02:
                        frame[chance.randrange(8, len(frame))] ^= 1 << chance.randrange(8)
                    await client.stream.send_all(frame)
            reading.cancel_scope.cancel()

    await attacker.in_parallel(4, once)


async def wrong_checksums(attacker: Attacker) -> None:
    """Send messages with wrong checksums. Each is refused, and the valid ones between them are stored."""

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client:
            topic = f"persistent://public/default/checksums-{chance.randrange(4)}"
            await client.produce(1, topic)
            for number in range(20):
                payload = bytearray(message(b"%d" % number))
                is_damaged = chance.random() < 0.5
                if is_damaged:
                    payload[chance.randrange(6, len(payload))] ^= 0xFF
                await client.send_payload(commands.send(1, number), bytes(payload))
                answer = await client.receive()
                attacker.counts["messages"] += 1
                if is_damaged != (answer.type == Type.SEND_ERROR):
                    attacker.complaints.append(f"a message was answered wrongly (damaged: {is_damaged}): {answer}")
                if is_damaged:
                    return  # Clients reconnect after it, and the broker may insist on that.

    await attacker.in_parallel(4, once)


async def half_open(attacker: Attacker) -> None:
    """Open connections that send nothing, or part of CONNECT, and stay open."""
    await _hold(attacker, HALF_OPEN, lambda stream, chance: stream.send_all(CONNECT[: chance.randrange(len(CONNECT))]))


async def stopped_frames(attacker: Attacker) -> None:
    """Stop producers in the middle of a message of 5 MB."""

    async def stop(stream: trio.SocketStream, chance: Random) -> None:
        await stream.send_all(CONNECT + encode_command(commands.producer(_own(chance), 1, 1)))
        frame = encode_payload_command(commands.send(1, 0), LARGEST)
        await stream.send_all(frame[: chance.randrange(len(frame))])
        attacker.counts["stopped frames"] += 1

    await _hold(attacker, FLOODING, stop)


async def never_read(attacker: Attacker) -> None:
    """Send endless requests, and open consumers with many permits, but read nothing."""
    async with attacker.client() as client:
        await client.produce(1, "persistent://public/default/unread")
        for number in range(40):
            await client.send_payload(commands.send(1, number), message(bytes(500_000)))
            await client.receive()

    async def fall_silent(stream: trio.SocketStream, chance: Random) -> None:
        await stream.send_all(CONNECT)
        topic = "persistent://public/default/unread"
        reader = commands.subscribe(topic, f"r{chance.getrandbits(30)}", 1, 1, durable=False, start=message_id(-1, -1))
        await stream.send_all(encode_command(reader) + encode_command(commands.flow(1, 2**31 - 1)))
        for number in count():
            asked = [commands.lookup(topic, 2 * number), commands.partitioned_metadata(topic, 2 * number + 1)]
            await stream.send_all(b"".join(map(encode_command, asked)) * 100)
            attacker.counts["unread requests"] += 200

    await _hold(attacker, 50, fall_silent)


async def flooding_producers(attacker: Attacker) -> None:
    """Send as fast as the broker accepts it with hundreds of producers, and read no receipts."""

    async def flood(stream: trio.SocketStream, chance: Random) -> None:
        await stream.send_all(CONNECT + encode_command(commands.producer(_own(chance), 1, 1)))
        payload = message(bytes(chance.choice((100, 10_000, 1_000_000, 5_000_000))))
        for number in count():
            await stream.send_all(encode_payload_command(commands.send(1, number), payload))
            attacker.counts["MB sent"] += len(payload) // 1_000_000
            attacker.counts["messages sent"] += 1

    await _hold(attacker, FLOODING, flood)


async def storm(attacker: Attacker) -> None:
    """Open and close connections, some of them without sending anything."""

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.stream() as stream:
            speaks = chance.random() < 0.7
            if speaks:
                await stream.send_all(CONNECT)
            if chance.random() < 0.5:
                await stream.send_all(encode_command(commands.producer(_own(chance), 1, 1)))
                await stream.send_all(encode_command(commands.subscribe(_own(chance), "s", 1, 2)))
            if speaks and chance.random() < 0.3:
                await stream.receive_some(READ_BYTES)
            if chance.random() < 0.3:
                # Close the connection with a reset.
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    await attacker.in_parallel(20, once)


async def small_commands(attacker: Attacker) -> None:
    """Pipeline the smallest commands, and read the answers."""
    topic = "persistent://public/default/small"

    def drawn(chance: Random, number: int) -> pb.BaseCommand:
        kinds = (
            commands.ping,
            partial(commands.flow, 1, chance.choice((0, 1, 2**32 - 1))),
            partial(commands.lookup, topic, number),
            partial(commands.get_last_message_id, 1, number),
            partial(commands.new_txn, number, 0, chance.choice((0, 1, 60_000, 2**62))),
            partial(commands.ack, 1, [message_id(chance.randrange(9), chance.randrange(9))], request_id=number),
            partial(commands.redeliver, 1, [message_id(1, 1)]),
        )
        return chance.choice(kinds)()

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client, trio.open_nursery() as reading:
            await client.ask(
                commands.subscribe(topic, f"s{chance.randrange(20)}", 1, 1, sub_type=pb.CommandSubscribe.Shared)
            )
            reading.start_soon(read, client.stream)
            for first in range(10, 10_000, 1000):
                await client.send(*(drawn(chance, first + number) for number in range(1000)))
                attacker.counts["commands"] += 1000
            reading.cancel_scope.cancel()

    await attacker.in_parallel(4, once)


async def watchers(attacker: Attacker) -> None:
    """Open thousands of watches of layouts and namespaces, with patterns that no matcher should run."""

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client, trio.open_nursery() as reading:
            reading.start_soon(read, client.stream)
            for first in range(1, 3000, 100):
                asked = []
                for number in range(first, first + 100):
                    pattern = f"persistent://public/default/{chance.choice(BAD_PATTERNS)}"
                    asked.append(
                        chance.choice(
                            (
                                commands.scalable_topic_lookup(number, f"topic://public/default/w{number}"),
                                commands.watch_topic_list(number, number, "public/default", pattern),
                                commands.watch_scalable_topics(number, "public/default"),
                                commands.watch_tc_assignments(number),
                                commands.topics_of_namespace(number, "public/default", topics_pattern=pattern),
                            )
                        )
                    )
                await client.send(*asked)
                attacker.counts["watches"] += 100
            reading.cancel_scope.cancel()

    await attacker.in_parallel(4, once)


async def read(stream: trio.abc.Stream) -> None:
    """Read and discard everything."""
    with suppress(*LOST):
        while await stream.receive_some(READ_BYTES):
            pass


async def _hold(
    attacker: Attacker, connections: int, begin: Callable[[trio.SocketStream, Random], Awaitable[None]]
) -> None:
    """Open this many connections, start each in its own way, and keep them until the time is over."""

    async def one(attacker: Attacker, chance: Random) -> None:
        async with attacker.stream() as stream:
            with suppress(*LOST):
                await begin(stream, chance)
            await trio.sleep_until(attacker.until)

    await attacker.in_parallel(connections, one)


def _own(chance: Random) -> str:
    """Return one of the attackers' topics."""
    return f"persistent://public/default/attacked-{chance.randrange(8)}"


ATTACKS: Final = (
    Attack("wire.random-bytes", random_bytes),
    Attack("wire.false-sizes", false_sizes),
    Attack("wire.mutated-sessions", mutated_sessions),
    Attack("wire.wrong-checksums", wrong_checksums),
    Attack("wire.half-open", half_open),
    Attack("wire.stopped-frames", stopped_frames),
    Attack("wire.never-read", never_read),
    Attack("wire.flooding-producers", flooding_producers),
    Attack("wire.storm", storm),
    Attack("wire.small-commands", small_commands),
    Attack("wire.watchers", watchers),
)
