"""Attacks by number: more producers, consumers and so on than a client may have, on the attackers' own topics.

Each attack reaches a bound of docs/bounds.md, if there is time. The broker must serve what is below the bound. It must
refuse, forget or delay what is above it. Other clients must not notice.
"""

from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from typing import Final

import trio

from broker.pulsar.consuming import CONSUMERS_MAX
from broker.pulsar.producing import PRODUCERS_MAX
from dispatch.permits import UNACKED_MESSAGES_PER_CONSUMER_MAX
from storage.cursor_record import STORED_MAX
from tests.support.admin import Admin
from tests.support.attacks.attacker import Attacker, AttackerClient
from tests.support.attacks.siege import Attack
from tests.support.wire import message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id

Type = pb.BaseCommand.Type

OWN: Final = "persistent://public/default/crowd"
SCALABLE: Final = "topic://public/default/crowd-aborted"
SEGMENT: Final = "segment://public/default/crowd-aborted/0000-ffff-0"
AT_ONCE: Final = 100
"""The number of commands that are sent before their answers are read."""
BATCH: Final = 1_000
"""The number of messages in a batch."""
TOPICS: Final = 1_000
"""New topics of one attack. Their number has no bound; docs/bounds.md says what each costs."""
SEEKERS: Final = 500


async def producers(attacker: Attacker) -> None:
    """Open the most producers that one connection may have, and more. Each stores a message."""

    async def once(attacker: Attacker, _chance: Random) -> None:
        async with attacker.client() as client:
            for first in range(0, PRODUCERS_MAX + AT_ONCE, AT_ONCE):
                numbers = range(first, first + AT_ONCE)
                # A topic takes no more producers than a connection, and the last connection's may still be leaving.
                asked = [commands.producer(f"{OWN}-{number % 4}-produced", number, number) for number in numbers]
                answers = await _ask_all(client, asked)
                _judge(attacker, "producers", numbers, answers, Type.PRODUCER_SUCCESS, PRODUCERS_MAX)
                if first < PRODUCERS_MAX:
                    for number in numbers:
                        await client.send_payload(commands.send(number, 0), message())
                    for _ in numbers:
                        await client.receive()

    await attacker.in_parallel(1, once)


async def consumers(attacker: Attacker) -> None:
    """Open the most consumers that one connection may have, and more."""

    async def once(attacker: Attacker, _chance: Random) -> None:
        ask = partial(commands.subscribe, OWN, "crowd", sub_type=pb.CommandSubscribe.Shared)
        async with attacker.client() as client:
            for first in range(0, CONSUMERS_MAX + AT_ONCE, AT_ONCE):
                numbers = range(first, first + AT_ONCE)
                answers = await _ask_all(client, [ask(number, number) for number in numbers])
                _judge(attacker, "consumers", numbers, answers, Type.SUCCESS, CONSUMERS_MAX)

    await attacker.in_parallel(1, once)


async def unacknowledged(attacker: Attacker) -> None:
    """Receive everything with one consumer, and acknowledge nothing."""
    topic = f"{OWN}-unacknowledged"

    async def once(attacker: Attacker, chance: Random) -> None:
        asked = commands.subscribe(topic, f"s{chance.getrandbits(30)}", 1, 1, sub_type=pb.CommandSubscribe.Shared)
        batch = message(batch_of=BATCH)
        async with attacker.client() as sending, attacker.client() as taking:
            await taking.ask(asked)
            await taking.send(commands.flow(1, 2**31 - 1))
            await sending.produce(1, topic)
            for number in range(0, 2 * UNACKED_MESSAGES_PER_CONSUMER_MAX, BATCH):
                await sending.send_payload(commands.send(1, number, num_messages=BATCH), batch)
                await sending.receive()
            # The answer to this comes after everything that the broker has sent so far.
            await taking.send(commands.lookup(topic, 2))
            taken = 0
            while (await taking.receive()).type == Type.MESSAGE:
                taken += BATCH
            attacker.counts["messages taken"] += taken
            if taken > UNACKED_MESSAGES_PER_CONSUMER_MAX + BATCH:
                attacker.complaints.append(f"{taken:,} messages were sent to a consumer that acknowledges none")

    await attacker.in_parallel(1, once)


async def aborted(attacker: Attacker) -> None:
    """Abort thousands of transactions that wrote a message."""
    with suppress(OSError):
        await trio.to_thread.run_sync(Admin(f"http://{attacker.http}").create, SCALABLE)

    async def once(attacker: Attacker, _chance: Random) -> None:
        async with attacker.client() as client:
            await client.produce(1, SEGMENT)
            for number in count(1):
                begun = (await client.ask(commands.new_txn(3 * number, 0, 60_000))).new_txn_response
                txn = (begun.txnid_most_bits, begun.txnid_least_bits)
                await client.send_payload(commands.send(1, number, txn=txn), message())
                await client.receive()
                await client.ask(commands.end_txn(3 * number + 1, txn, commit=False))
                attacker.counts["transactions aborted"] += 1

    await attacker.in_parallel(20, once)


async def gaps(attacker: Attacker) -> None:
    """Leave a gap between each two sequence ids of a producer, because deduplication must remember the gaps."""

    async def once(attacker: Attacker, _chance: Random) -> None:
        async with attacker.client() as client:
            await client.produce(1, f"{OWN}-gaps")
            for first in count(0, AT_ONCE):
                for number in range(first, first + AT_ONCE):
                    await client.send_payload(commands.send(1, 2 * number), message())
                for _ in range(AT_ONCE):
                    await client.receive()
                attacker.counts["gaps"] += AT_ONCE

    await attacker.in_parallel(4, once)


async def holes(attacker: Attacker) -> None:
    """Acknowledge every second message, because the cursor must remember each range."""

    async def once(attacker: Attacker, chance: Random) -> None:
        asked = commands.subscribe(f"{OWN}-holes", f"s{chance.getrandbits(30)}", 1, 1)
        async with attacker.client() as client:
            await client.ask(asked)
            await client.produce(1, f"{OWN}-holes")
            for made in count(AT_ONCE, AT_ONCE):
                for number in range(2 * AT_ONCE):
                    await client.send_payload(commands.send(1, 2 * made + number), message())
                stored = [(await client.receive()).send_receipt.message_id for _ in range(2 * AT_ONCE)]
                attacker.counts["holes"] += AT_ONCE
                if made > STORED_MAX + AT_ONCE:
                    # Acknowledgements without an answer are kept in memory as long as there is room.
                    await client.send(commands.ack(1, stored[1::2]))
                    continue
                answer = (await client.ask(commands.ack(1, stored[1::2], request_id=2))).ack_response
                if answer.HasField("error") != (made > STORED_MAX):
                    attacker.complaints.append(f"{made:,} gaps were answered by {answer.message or 'success'}")

    await attacker.in_parallel(1, once)


async def seekers(attacker: Attacker) -> None:
    """Let readers seek and lose their connection, because the broker remembers their positions."""
    ask = partial(commands.subscribe, f"{OWN}-sought", durable=False, start=message_id(0, 0))

    async def once(attacker: Attacker, chance: Random) -> None:
        async with attacker.client() as client:
            client.ignored.add(Type.CLOSE_CONSUMER)
            for number in range(1, SEEKERS):
                name = f"r{chance.getrandbits(60)}"
                await client.ask(ask(name, number, 2 * number))
                await client.ask(commands.seek(number, 2 * number + 1, to=message_id(-1, -1)))
                attacker.counts["seeks"] += 1

    await attacker.in_parallel(2, once)


async def topics(attacker: Attacker) -> None:
    """Create a topic for each producer, with a subscription that nobody deletes."""
    numbers = count()

    async def once(attacker: Attacker, _chance: Random) -> None:
        async with attacker.client() as client:
            for request in count(0, 2):
                number = next(numbers)
                if number >= TOPICS:
                    await trio.sleep_until(attacker.until)
                    return
                await client.ask(commands.producer(f"{OWN}-{number}", request, request))
                await client.ask(commands.subscribe(f"{OWN}-{number}", "s", request, request + 1))
                attacker.counts["topics"] += 1

    await attacker.in_parallel(4, once)


async def _ask_all(client: AttackerClient, asked: list[pb.BaseCommand]) -> list[pb.BaseCommand]:
    await client.send(*asked)
    return [await client.receive() for _ in asked]


def _judge(
    attacker: Attacker, what: str, numbers: range, answers: list[pb.BaseCommand], served: int, bound: int
) -> None:
    """Check that all requests below the bound were served, and all above it refused."""
    attacker.counts[what] += len(numbers)
    due = max(0, min(bound - numbers.start, len(numbers)))
    found = sum(answer.type == served for answer in answers)
    if found != due:
        refused = next((answer.error.message for answer in answers if answer.type != served), "")
        attacker.complaints.append(f"of {what} {numbers}, {found} were served instead of {due}: {refused}")


ATTACKS: Final = (
    Attack("crowds.producers", producers),
    Attack("crowds.consumers", consumers),
    Attack("crowds.unacknowledged", unacknowledged),
    Attack("crowds.aborted", aborted),
    Attack("crowds.gaps", gaps),
    Attack("crowds.holes", holes),
    Attack("crowds.seekers", seekers),
    Attack("crowds.topics", topics),
)
