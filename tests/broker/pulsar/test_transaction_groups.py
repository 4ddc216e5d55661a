"""Groups of transactions over the wire, which only Tidewire has: answers and refusals."""

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from tests.support.rooms import TOPIC, Rooms, visible
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

FIRST = pb.TransactionGroup(application="app", batch=1)


async def join(client: WireClient, group: pb.TransactionGroup = FIRST) -> tuple[int, int]:
    answer = (await client.ask(commands.new_txn(1, 3, 60_000, group=group))).new_txn_response
    assert answer.group_state == pb.GroupState.UNDECIDED
    assert answer.HasField("group_state"), "by which a client knows that there are groups"
    return answer.txnid_most_bits, answer.txnid_least_bits


async def test_the_way_of_a_group(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """D17: two attempts write, and one is named; a repeat, from any client, learns that it is applied."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = str(await broker.segment(TOPIC, 0))
    topic = await broker.topics.get(TopicName.parse(name))
    failed, winner = await join(client), await join(other)
    for connection, txn in ((client, failed), (other, winner)):
        await connection.produce(1, name)
        await connection.publish(1, 0, b"row", txn)
        assert (await connection.receive()).type == pb.BaseCommand.SEND_RECEIPT
    assert await visible(topic) == []
    for request_id in (5, 6):
        answer = (await client.ask(commands.end_group(request_id, FIRST, [winner], commit=True))).end_txn_response
        assert (answer.request_id, answer.group_state) == (request_id, pb.GroupState.APPLIED)
    await wait_all_tasks_blocked()
    assert len(await visible(topic)) == 1
    assert broker.coordinator.statistics().committed == broker.coordinator.statistics().aborted == 1
    again = (await client.ask(commands.new_txn(7, 0, 60_000, group=FIRST))).new_txn_response
    assert again.group_state == pb.GroupState.APPLIED
    assert not again.HasField("txnid_least_bits")
    answer = (await client.ask(commands.end_group(8, FIRST, commit=False))).end_txn_response
    assert answer.group_state == pb.GroupState.APPLIED, "what is committed stays so"


async def test_a_batch_says_what_it_holds(client: WireClient) -> None:
    """E19: other contents under its number are refused with a sentence, and so are contents that are too long."""

    def holding(**content: str | bool) -> pb.TransactionGroup:
        return pb.TransactionGroup(application="app", batch=1, **content)  # type: ignore[arg-type]

    async def commit(group: pb.TransactionGroup) -> pb.CommandEndTxnResponse:
        return (await client.ask(commands.end_group(2, group, [], commit=True))).end_txn_response

    assert (await commit(holding(plan="a", rows="b"))).group_state == pb.GroupState.APPLIED
    for same in holding(plan="a", rows="c"), holding(rows="b"), holding(rows="c", trusts_number=True), FIRST:
        assert (await commit(same)).group_state == pb.GroupState.APPLIED
    refused = await commit(holding(plan="c", rows="d"))
    assert refused.error == pb.NotAllowedError
    assert "Continue with the newest checkpoint" in refused.message
    assert (await commit(holding(rows="b" * 257))).HasField("error")


async def test_a_group_that_is_aborted_can_be_tried_again(client: WireClient) -> None:
    """Its transactions have ended."""
    txn = await join(client)
    answer = (await client.ask(commands.end_group(2, FIRST, commit=False))).end_txn_response
    assert answer.HasField("group_state")
    assert answer.group_state == pb.GroupState.UNDECIDED
    refused = (await client.ask(commands.end_group(3, FIRST, [txn], commit=True))).end_txn_response
    assert refused.error == pb.InvalidTxnStatus
    again = await join(client)
    answer = (await client.ask(commands.end_group(4, FIRST, [again], commit=True))).end_txn_response
    assert answer.group_state == pb.GroupState.APPLIED


async def test_a_transaction_of_a_group_is_not_committed_alone(client: WireClient) -> None:
    """The refusal says how to commit it."""
    txn = await join(client)
    refused = (await client.ask(commands.end_txn(2, txn, commit=True))).end_txn_response
    assert refused.error == pb.NotAllowedError
    assert "winners" in refused.message
    answer = (await client.ask(commands.end_txn(3, txn, commit=False))).end_txn_response
    assert not answer.HasField("error")


@pytest.mark.parametrize(
    "wrong",
    [
        pb.TransactionGroup(application="", batch=1),
        pb.TransactionGroup(application="a" * 257, batch=1),
        pb.TransactionGroup(application="app", batch=1 << 63),
    ],
)
async def test_names_and_numbers_that_no_group_has(client: WireClient, wrong: pb.TransactionGroup) -> None:
    """The refusal is permanent, and nothing is changed."""
    refused = (await client.ask(commands.new_txn(1, 0, 60_000, group=wrong))).new_txn_response
    assert refused.error == pb.NotAllowedError
    ended = (await client.ask(commands.end_group(2, wrong, commit=True))).end_txn_response
    assert ended.error == pb.NotAllowedError


async def test_winners_that_are_none(client: WireClient) -> None:
    """Each refusal has its own code; the group stays undecided."""
    txn = await join(client)
    for winner, code in (
        ((0, (1 << 62) | 4711), pb.TransactionNotFound),
        ((0, 5), pb.NotAllowedError),
    ):
        refused = (await client.ask(commands.end_group(2, FIRST, [txn, winner], commit=True))).end_txn_response
        assert refused.error == code
    refused = (await client.ask(commands.end_group(3, FIRST, [txn], commit=False))).end_txn_response
    assert refused.error == pb.NotAllowedError
    undecided = commands.end_group(4, FIRST, [txn], commit=True)
    undecided.end_txn.ClearField("txn_action")
    refused = (await client.ask(undecided)).end_txn_response
    assert refused.error == pb.NotAllowedError
    answer = (await client.ask(commands.end_group(5, FIRST, [txn], commit=True))).end_txn_response
    assert answer.group_state == pb.GroupState.APPLIED


async def test_who_keeps_no_count_is_told_the_last_batch(client: WireClient) -> None:
    """D17: it learns the number by aborting what may be open, which it must do anyway."""

    async def aborted(number: int, batch: int) -> pb.CommandEndTxnResponse:
        group = pb.TransactionGroup(application="app", batch=batch)
        return (await client.ask(commands.end_group(number, group, commit=False))).end_txn_response

    unknown = await aborted(1, 0)
    assert unknown.group_state == pb.GroupState.UNDECIDED
    assert not unknown.HasField("last_applied_batch")
    for batch in (0, 1):
        group = pb.TransactionGroup(application="app", batch=batch)
        answer = (
            await client.ask(commands.end_group(2, group, [await join(client, group)], commit=True))
        ).end_txn_response
        assert answer.group_state == pb.GroupState.APPLIED
    left_open = await join(client, pb.TransactionGroup(application="app", batch=2))
    applied = await aborted(3, 0)
    assert (applied.group_state, applied.last_applied_batch) == (pb.GroupState.APPLIED, 1)
    following = await aborted(4, 2)
    assert (following.group_state, following.last_applied_batch) == (pb.GroupState.UNDECIDED, 1)
    ended = (await client.ask(commands.end_txn(5, left_open, commit=False))).end_txn_response
    assert not ended.HasField("error"), "it is aborted, as is repeated here"


async def test_a_job_that_runs_once_is_aborted_for_good(client: WireClient) -> None:
    """A task that begins after its job has failed is told so."""
    once = pb.TransactionGroup(application="job", batch=0, once=True)
    await join(client, once)
    answer = (await client.ask(commands.end_group(2, once, commit=False))).end_txn_response
    assert answer.group_state == pb.GroupState.UNDECIDED
    refused = (await client.ask(commands.new_txn(3, 0, 60_000, group=once))).new_txn_response
    assert refused.error == pb.InvalidTxnStatus
    assert "was aborted" in refused.message
