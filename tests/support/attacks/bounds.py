"""The largest legal inputs, which must be served, and slightly larger ones, which must be refused by name."""

from random import Random
from typing import Final

from broker.names import NAME_BYTES_MAX
from broker.pulsar.sizes import (
    ACK_SET_WORDS_MAX,
    COMMAND_BYTES_MAX,
    DECLARING_BYTES_MAX,
    IDS_BYTES_MAX,
    METADATA_BYTES_MAX,
)
from broker.schemas.schema import SCHEMA_BYTES_MAX
from tests.support.attacks.attacker import Attacker, AttackerClient
from tests.support.attacks.siege import Attack
from tests.support.wire import message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id

Type = pb.BaseCommand.Type
PLAIN: Final = "persistent://public/default/bounds"
PREFIX: Final = "persistent://public/default/"
ID_BYTES: Final = 24
"""The most bytes that an id takes here in an ACK."""
ID_BYTES_MIN: Final = 4
"""The fewest bytes that an id takes here in an ACK."""


async def _ask(attacker: Attacker, client: AttackerClient, what: str, command: pb.BaseCommand, *served: int) -> None:
    """Send a request; the answer must have one of these types."""
    answer = await client.ask(command)
    attacker.counts["inputs"] += 1
    if answer.type not in served:
        attacker.complaints.append(f"{what} was answered by {Type.Name(answer.type)}: {str(answer)[:200]}")


async def _send(
    attacker: Attacker, client: AttackerClient, what: str, number: int, payload: bytes, *, is_legal: bool
) -> None:
    await client.send_payload(commands.send(1, number), payload)
    answer = await client.receive()
    attacker.counts["inputs"] += 1
    if (answer.type == Type.SEND_RECEIPT) != is_legal:
        attacker.complaints.append(f"{what} was answered by {Type.Name(answer.type)}: {str(answer)[:200]}")


def _metadata(size: int) -> bytes:
    """Make a message whose metadata have this size, almost all of it in one property."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.properties.add(key="k", value="")
    while (missing := size - metadata.ByteSize()) > 0:
        metadata.properties[0].value += "v" * max(1, missing - 8)
    return build_payload(metadata, b"value")


async def names(attacker: Attacker) -> None:
    """Send names at their bound, and one byte longer."""

    async def once(attacker: Attacker, chance: Random) -> None:
        letter = chance.choice("abcdefgh")
        async with attacker.client() as client:
            longest = PREFIX + letter * (NAME_BYTES_MAX - len(PREFIX))
            asked = commands.partitioned_metadata(longest, 1, auto_create=False)
            await _ask(attacker, client, "the longest topic", asked, Type.PARTITIONED_METADATA_RESPONSE)
            await _ask(attacker, client, "a longer topic", commands.producer(longest + "a", 1, 2), Type.ERROR)
            asked = commands.subscribe(PLAIN, letter * 100_000, 1, 3)
            await _ask(attacker, client, "a subscription of 100,000 letters", asked, Type.ERROR)

    await attacker.in_parallel(2, once)


async def messages(attacker: Attacker) -> None:
    """Send messages, metadata and schemas at their bounds, and larger ones."""

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client:
            await client.produce(1, PLAIN)
            await _send(attacker, client, "a large message", 0, message(bytes(MAX_MESSAGE_SIZE - 1000)), is_legal=True)
            await _send(attacker, client, "large metadata", 1, _metadata(METADATA_BYTES_MAX - 8), is_legal=True)
            await _send(attacker, client, "larger metadata", 2, _metadata(METADATA_BYTES_MAX + 64), is_legal=False)
        async with attacker.client() as client:
            schema = pb.Schema(name="s", schema_data=b"x" * (SCHEMA_BYTES_MAX + 1), type=pb.Schema.Type.Avro)
            asked = commands.get_or_create_schema(1, PLAIN, schema)
            await _ask(attacker, client, "a larger schema", asked, Type.GET_OR_CREATE_SCHEMA_RESPONSE, Type.ERROR)

    await attacker.in_parallel(1, once)


async def acknowledgements(attacker: Attacker) -> None:
    """Send ACKs with the most ids, and the longest sets, that are allowed."""

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client:
            asked = commands.subscribe(PLAIN, f"s{chance.randrange(4)}", 1, 1, sub_type=pb.CommandSubscribe.Shared)
            await client.ask(asked)
            ids = [message_id(number % 50, number) for number in range(IDS_BYTES_MAX // ID_BYTES)]
            await _ask(attacker, client, "many ids", commands.ack(1, ids, request_id=2), Type.ACK_RESPONSE)
            words = [message_id(1, 1, ack_set=[-1] * (ACK_SET_WORDS_MAX // 16))]
            await _ask(attacker, client, "a long set", commands.ack(1, words, request_id=3), Type.ACK_RESPONSE)

    await attacker.in_parallel(2, once)


async def larger_commands(attacker: Attacker) -> None:
    """Send commands above their bound, which end the connection."""
    ids = [message_id(number, number) for number in range(IDS_BYTES_MAX // ID_BYTES_MIN)]
    schema = pb.Schema(name="s", schema_data=b"x" * DECLARING_BYTES_MAX, type=pb.Schema.Type.Avro)
    larger = [
        encode_command(command)
        for command in (
            commands.lookup("a" * COMMAND_BYTES_MAX, 1),
            commands.ack(1, ids, request_id=1),
            commands.redeliver(1, ids),
            commands.get_or_create_schema(1, PLAIN, schema),
        )
    ]

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client:
            await client.stream.send_all(chance.choice(larger))
            attacker.counts["inputs"] += 1
            await attacker.ends(client.stream)

    await attacker.in_parallel(4, once)


ATTACKS: Final = (
    Attack("bounds.names", names),
    Attack("bounds.messages", messages),
    Attack("bounds.acknowledgements", acknowledgements),
    Attack("bounds.larger-commands", larger_commands),
)
