"""The proxy's faults, each between a client and a server that answers every byte."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.support.proxy import Proxy, open_proxy


@asynccontextmanager
async def answering(ended: trio.Event | None = None) -> AsyncIterator[Proxy]:
    """A proxy in front of a server that sends back what it gets, until the client ends."""

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send_all(data)
            if ended is not None:
                ended.set()
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        async with open_proxy(f"127.0.0.1:{listener.socket.getsockname()[1]}") as proxy:
            yield proxy
        nursery.cancel_scope.cancel()


async def connected(proxy: Proxy) -> trio.SocketStream:
    host, _, port = proxy.endpoint.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def asked(stream: trio.SocketStream, what: bytes = b"a") -> bytes:
    await stream.send_all(what)
    return bytes(await stream.receive_some())


async def test_what_was_held_arrives_later() -> None:
    async with answering() as proxy, await connected(proxy) as stream:
        assert await asked(stream) == b"a"
        proxy.hold()
        with trio.move_on_after(0.05) as waiting:
            await asked(stream, b"b")
        assert waiting.cancelled_caught
        proxy.mend()
        assert await stream.receive_some() == b"b"
        assert await asked(stream) == b"a"


async def test_a_delay_counts_in_both_directions() -> None:
    async with answering() as proxy, await connected(proxy) as stream:
        proxy.delay(0.02)
        before = trio.current_time()
        assert await asked(stream) == b"a"
        assert trio.current_time() - before >= 0.04
        proxy.mend()
        assert await asked(stream) == b"a"


async def test_a_half_closed_connection_has_ended_for_the_server_alone() -> None:
    ended = trio.Event()
    async with answering(ended) as proxy, await connected(proxy) as stream:
        assert await asked(stream) == b"a"
        proxy.half_close()
        await ended.wait()
        with trio.move_on_after(0.05) as waiting:
            await asked(stream, b"lost")
        assert waiting.cancelled_caught
        async with await connected(proxy) as other:
            assert await asked(other) == b"a"
        proxy.mend()
        assert await stream.receive_some() == b""


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "new"])
async def test_a_cut_ends_connections_old_and_new(*, is_open: bool) -> None:
    async with answering() as proxy:
        if is_open:
            async with await connected(proxy) as stream:
                assert await asked(stream) == b"a"
                proxy.cut()
                assert await stream.receive_some() == b""
        proxy.cut()
        async with await connected(proxy) as stream:
            assert await stream.receive_some() == b""
        proxy.mend()
        async with await connected(proxy) as stream:
            assert await asked(stream) == b"a"


async def test_muted_answers_are_lost_with_their_connection() -> None:
    async with answering() as proxy, await connected(proxy) as stream:
        proxy.mute()
        await stream.send_all(b"abc")
        await proxy.answer_lost()
        assert proxy.lost_bytes == 3
        proxy.mend()
        assert await stream.receive_some() == b""
