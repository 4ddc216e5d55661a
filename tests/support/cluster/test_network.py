"""The simulated network keeps the rules of TCP, and its faults do what they say."""

from random import Random

import pytest
import trio
from trio.testing import MockClock

from tests.support.cluster.network import WINDOW, Network, SimulatedStream


async def pair(network: Network) -> tuple[SimulatedStream, SimulatedStream]:
    """A connection from b2 to b1: the end of b2, the end of b1."""
    listener = network.listen("b1")
    network.listen("b2")
    near = await network.connect("b2", "b1")
    return near, await listener.accept()


async def all_of(stream: SimulatedStream) -> bytes:
    found = b""
    while data := await stream.receive_some():
        found += data
    return found


async def test_bytes_arrive_in_order_and_then_the_end(autojump_clock: MockClock) -> None:
    random = Random(1)
    network = Network(random)
    network.latency = lambda: random.expovariate(10)
    network.slices_max = 7
    near, far = await pair(network)
    sent = [bytes([number]) * number for number in range(50)]
    for data in sent:
        await near.send_all(data)
    await near.aclose()
    assert await all_of(far) == b"".join(sent)
    with pytest.raises(trio.BrokenResourceError):
        await far.send_all(b"too late")


async def test_a_sender_waits_for_its_reader(autojump_clock: MockClock) -> None:
    near, far = await pair(Network(Random(1)))
    await near.send_all(bytes(WINDOW))
    with trio.move_on_after(10) as waited:
        await near.send_all(b"x")
    assert waited.cancelled_caught
    await trio.sleep(1)
    await far.receive_some(1000)
    await near.send_all(b"x")


async def test_a_cut_breaks_both_ends_until_it_heals(autojump_clock: MockClock) -> None:
    network = Network(Random(1))
    near, far = await pair(network)
    await near.send_all(b"lost")
    network.cut("b1", "b2")
    for stream in (near, far):
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
    with pytest.raises(ConnectionRefusedError):
        await network.connect("b2", "b1")
    network.heal()
    await network.connect("b2", "b1")


async def test_what_is_held_arrives_when_it_heals(autojump_clock: MockClock) -> None:
    network = Network(Random(1))
    near, far = await pair(network)
    network.hold("b2", "b1")
    await near.send_all(b"late")
    await far.send_all(b"on time")
    assert await near.receive_some() == b"on time"
    with trio.move_on_after(10) as waited:
        await far.receive_some()
    assert waited.cancelled_caught
    with trio.move_on_after(10) as connecting:
        await network.connect("b2", "b1")
    assert connecting.cancelled_caught
    network.heal()
    assert await far.receive_some() == b"late"


async def test_one_direction_ends_and_the_other_goes_on(autojump_clock: MockClock) -> None:
    network = Network(Random(1))
    near, far = await pair(network)
    await near.send_all(b"before")
    network.half_close("b2", "b1")
    await near.send_all(b"nobody reads this")
    assert await all_of(far) == b"before"
    await far.send_all(b"still there")
    assert await near.receive_some() == b"still there"


async def test_the_end_of_a_process_ends_its_connections(autojump_clock: MockClock) -> None:
    network = Network(Random(1))
    near, far = await pair(network)
    await far.send_all(b"last words")
    network.forget("b1")
    assert await all_of(near) == b"last words"
    with pytest.raises(trio.BrokenResourceError):
        await near.send_all(b"x")
    with pytest.raises(ConnectionRefusedError):
        await network.connect("b2", "b1")
