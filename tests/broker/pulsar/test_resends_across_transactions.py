"""Sends whose ids were used in an earlier transaction. That transaction's fate decides how they are treated."""

from collections.abc import Sequence
from unittest.mock import patch

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.deduplication import deduplication
from broker.deduplication.snapshot import KEY_PREFIX, sequences_key
from storage.metadata.store import Op, PutSequential
from tests.broker.pulsar.test_resends import one_segment, payload, returns, send, stored
from tests.support.disk import SimulatedFiles
from tests.support.rooms import Rooms, rooms
from tests.support.steered_store import SteeredStore
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
Txn = tuple[int, int]
NAME = "me"
FORGOTTEN = (2**64 - 1, 2**64 - 1)
"""The place in the receipt of a send that is stored already, when a snapshot is all that says so."""


async def begin(client: WireClient) -> Txn:
    opened = (await client.ask(commands.new_txn(1, 0, 60_000))).new_txn_response
    return opened.txnid_most_bits, opened.txnid_least_bits


async def end(client: WireClient, txn: Txn, *, commit: bool) -> None:
    answer = await client.ask(commands.end_txn(2, txn, commit=commit))
    assert answer.type == Type.END_TXN_RESPONSE
    assert not answer.end_txn_response.HasField("error"), answer


async def send_all(client: WireClient, ids: Sequence[int], txn: Txn | None = None) -> list[tuple[int, int]]:
    """Send all, and return the positions in the receipts."""
    receipts = [await send(client, NAME, number, txn) for number in ids]
    return [(receipt.message_id.ledger_id, receipt.message_id.entry_id) for receipt in receipts]


async def refused(client: WireClient, sequence_id: int, txn: Txn | None = None) -> pb.CommandSendError:
    command = commands.send(1, sequence_id, txn=txn)
    await client.stream.send_all(encode_payload_command(command, payload(NAME, sequence_id)))
    answer = await client.receive()
    assert answer.type == Type.SEND_ERROR, answer
    return answer.send_error


async def opened_again(client: WireClient, topic: str) -> pb.CommandProducerSuccess:
    """Open the producer as a restarted program does. The broker may still have its old connection for a moment."""
    while (answer := await client.produce(1, topic, NAME)).type != Type.PRODUCER_SUCCESS:
        pass
    return answer.producer_success


@pytest.fixture
async def topic(broker: Rooms, client: WireClient) -> str:
    name = await one_segment(broker)
    await client.produce(1, name, NAME)
    return name


@pytest.mark.parametrize("in_transaction", [True, False])
async def test_what_an_aborted_transaction_stored_is_not_stored(
    broker: Rooms, client: WireClient, topic: str, in_transaction: bool
) -> None:
    """E6: the same ids, in another transaction or outside any, are new."""
    aborted = await begin(client)
    first = await send_all(client, range(3), aborted)
    await end(client, aborted, commit=False)
    assert "is already ABORTED" in (await refused(client, 0, aborted)).message
    txn = await begin(client) if in_transaction else None
    again = await send_all(client, range(3), txn)
    assert len({*first, *again}) == 6, "a receipt names what an aborted transaction stored"
    assert await send_all(client, range(3), txn) == again
    if txn is not None:
        await end(client, txn, commit=True)
        await wait_all_tasks_blocked()
    assert await stored(broker, topic) == 3


async def test_what_a_committed_transaction_stored_is_stored(broker: Rooms, client: WireClient, topic: str) -> None:
    """E6: a program that does not know its transaction's fate sends the ids again in another one: no copy is stored."""
    committed = await begin(client)
    places = await send_all(client, range(3), committed)
    await end(client, committed, commit=True)
    txn = await begin(client)
    assert await send_all(client, range(3), txn) == places
    assert len(await send_all(client, [3], txn)) == 1
    await end(client, txn, commit=False)
    await send_all(client, range(4))
    await wait_all_tasks_blocked()
    assert await stored(broker, topic) == 4


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("in_transaction", [True, False])
async def test_what_an_open_transaction_holds_is_in_doubt(
    broker: Rooms, client: WireClient, topic: str, in_transaction: bool, commit: bool
) -> None:
    """E6: it is neither stored twice nor confirmed; the connection and the producer continue."""
    first = await begin(client)
    await send_all(client, range(3), first)
    txn = await begin(client) if in_transaction else None
    refusal = await refused(client, 1, txn)
    assert (refusal.sequence_id, refusal.error) == (1, pb.NotAllowedError)
    assert f"transaction {first[0]}:{first[1]}, which is still open" in refusal.message
    await send_all(client, [3], txn)
    await end(client, first, commit=commit)
    await send_all(client, range(4), txn)
    if txn is not None:
        await end(client, txn, commit=True)
    await wait_all_tasks_blocked()
    assert await stored(broker, topic) == 4


async def test_the_parts_of_an_aborted_message_are_new(broker: Rooms, client: WireClient, topic: str) -> None:
    """E6: the aborted transaction had only the first chunk of the message, or all chunks."""

    async def send_chunk(chunk: int, txn: Txn | None) -> bool:
        metadata = pb.MessageMetadata(
            producer_name=NAME, sequence_id=0, publish_time=1, chunk_id=chunk, num_chunks_from_msg=2, uuid="me-0"
        )
        command = commands.send(1, 0, txn=txn)
        command.send.is_chunk = True
        await client.stream.send_all(encode_payload_command(command, build_payload(metadata, b"part")))
        return (await client.receive()).type == Type.SEND_RECEIPT

    for chunks in (1, 2):
        aborted = await begin(client)
        for chunk in range(chunks):
            assert await send_chunk(chunk, aborted)
        assert not await send_chunk(0, None), "the open transaction may bring the rest"
        await end(client, aborted, commit=False)
    for chunk in (0, 1, 0, 1):
        assert await send_chunk(chunk, None)
    assert await stored(broker, topic) == 2


async def test_what_a_producer_that_opens_anew_is_told(client: WireClient, other: WireClient, topic: str) -> None:
    """E6: it continues counting after what is stored or may be stored; aborted sends do not count."""
    await send_all(client, [0])
    txn = await begin(client)
    await send_all(client, [1, 2], txn)
    await client.close()
    assert (await opened_again(other, topic)).last_sequence_id == 2
    await end(other, txn, commit=False)
    await other.ask(commands.close_producer(1, 5))
    assert (await opened_again(other, topic)).last_sequence_id == 0


@pytest.mark.parametrize("snapshot_entries", [1, 1000])
@pytest.mark.parametrize("decided", ["before", "between", "after"])
@pytest.mark.parametrize("commit", [True, False])
async def test_a_transactions_fate_counts_after_a_restart(commit: bool, decided: str, snapshot_entries: int) -> None:
    """E6: the fate comes from the log or a snapshot, and was decided before, during or after the broker's death."""
    metadata, files = SteeredStore(), SimulatedFiles(seed=5)
    with patch.object(deduplication, "SNAPSHOT_ENTRIES", snapshot_entries):
        async with rooms(metadata, files) as broker, listening(broker) as listener, connected(listener) as client:
            topic = await one_segment(broker)
            await client.produce(1, topic, NAME)
            txn = await begin(client)
            first = set(await send_all(client, range(3), txn))
            await wait_all_tasks_blocked()
            assert (await metadata.get(sequences_key(topic)) is not None) is (snapshot_entries == 1)
            if decided == "before":
                # The snapshot does not tell.
                metadata.before = _refuse_snapshots
                await end(client, txn, commit=commit)
                await wait_all_tasks_blocked()
        metadata.before = None
        files = files.crash()
        async with rooms(metadata, files) as broker, listening(broker) as listener, connected(listener) as client:
            if decided == "between":
                await end(client, txn, commit=commit)
            await opened_again(client, topic)
            if decided == "after":
                await refused(client, 0)
                await end(client, txn, commit=commit)
            known = {*first, FORGOTTEN}
            assert known.isdisjoint(await send_all(client, range(3))) is not commit
            assert await stored(broker, topic) == 3


async def _refuse_snapshots(ops: Sequence[Op]) -> None:
    assert KEY_PREFIX not in repr(ops)


async def test_a_send_under_way_on_a_lost_connection_is_not_stored_twice() -> None:
    """E6: its op record was being written when the send was repeated on another connection."""
    metadata = SteeredStore()
    go_on = trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if any(isinstance(op, PutSequential) for op in ops):
            await go_on.wait()

    async with rooms(metadata, SimulatedFiles(seed=5)) as broker, listening(broker) as listener:
        topic = await one_segment(broker)
        async with connected(listener) as other:
            async with connected(listener) as client:
                await client.produce(1, topic, NAME)
                txn = await begin(client)
                metadata.before = hold
                await client.stream.send_all(encode_payload_command(commands.send(1, 0, txn=txn), payload(NAME, 0)))
                await client.receives_nothing_more()
            while (await returns(other, topic, NAME)).type != Type.PRODUCER_SUCCESS:
                pass
            await other.stream.send_all(encode_payload_command(commands.send(1, 0, txn=txn), payload(NAME, 0)))
            await wait_all_tasks_blocked()
            go_on.set()
            assert (await other.receive()).type == Type.SEND_RECEIPT
            metadata.before = None
            await end(other, txn, commit=True)
            await wait_all_tasks_blocked()
            assert await stored(broker, topic) == 1
