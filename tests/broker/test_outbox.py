import trio
from trio.testing import wait_all_tasks_blocked

from broker.budgets import SendBudget
from broker.outbox import BYTES_HIGH, BYTES_LOW, WRITE_BYTES_MAX, Outbox
from storage.signal import Signal


class Taker(trio.abc.SendStream):
    """Records what it is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        assert isinstance(data, bytes)
        self.sent.append(data)
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_small_pieces_are_joined_and_large_ones_go_as_they_are() -> None:
    """All bytes keep their order, however they are joined."""
    outbox, taker = Outbox(), Taker()
    large = b"L" * WRITE_BYTES_MAX
    outbox.put(b"a")
    outbox.put(b"head", b"small")
    outbox.put(b"head", large)
    outbox.put(b"z")
    outbox.finish()
    await outbox.run(taker)
    assert [len(data) for data in taker.sent] == [len(b"aheadsmallhead"), WRITE_BYTES_MAX, 1]
    assert taker.sent[1] is large, "it was not copied"
    assert b"".join(taker.sent) == b"aheadsmallhead" + large + b"z"


async def test_it_is_writable_again_when_most_was_taken_and_says_so() -> None:
    outbox, taker, signal = Outbox(), Taker(), Signal()
    outbox.attach(signal)
    writable = []
    for _ in range(BYTES_HIGH // BYTES_LOW):
        writable.append(outbox.writable)
        outbox.put(b"head", bytes(BYTES_LOW))
    writable.append(outbox.writable)
    outbox.finish()
    await outbox.run(taker)
    writable.append(outbox.writable)
    assert writable == [True] * (BYTES_HIGH // BYTES_LOW) + [False, True]
    with trio.fail_after(60):
        await signal.wait()


async def test_what_is_being_written_counts_until_the_peer_has_taken_it(nursery: trio.Nursery) -> None:
    """E9: a large message that a client does not read counts, wherever it waits."""

    class Stalled(Taker):
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await trio.sleep_forever()

    budget = SendBudget(BYTES_HIGH)
    outbox = Outbox(budget)
    nursery.start_soon(outbox.run, Stalled())
    outbox.put(bytes(BYTES_HIGH))
    await wait_all_tasks_blocked()
    assert (outbox.writable, budget.held_bytes) == (False, BYTES_HIGH)
    outbox.close()
    assert budget.held_bytes == 0
