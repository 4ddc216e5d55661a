"""What goes out over one link, and in which order. Whole links are in `test_link_sessions`."""

from collections.abc import Iterator
from itertools import count

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.batches import BEGINNING, Body, encode_batches
from storage.metadata.cluster import pushing
from storage.metadata.cluster.frames import Frames
from storage.metadata.cluster.link_streams import LinkStream
from storage.metadata.cluster.messages import At, Message, PushedBatch, Start, Token, Welcome
from storage.metadata.cluster.pushing import Outbox
from storage.metadata.log import Appended


class Sent(trio.abc.SendStream):
    """Keeps what was sent."""

    def __init__(self) -> None:
        self._frames = Frames()
        self.messages: list[Message] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            self.messages.append(frame.message)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_token_goes_between_what_queued_up_behind_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: a broker that is brought up to date keeps its sessions for as long as it makes progress."""
    monkeypatch.setattr(pushing, "QUEUED_BYTES_MAX", 1000)
    monkeypatch.setattr(pushing, "SENT_AT_ONCE", 1)
    sent, tokens = Sent(), count(1)
    stream = trio.StapledStream(sent, sent)  # type: ignore[type-var]
    outbox = Outbox(LinkStream(stream, 1), lambda: next(tokens), lambda: None)
    data, point = encode_batches(BEGINNING, [Body(bytes(1000), 1), Body(bytes(1000), 1)], confirmed=0, offset=0)

    def start() -> Iterator[Message]:
        yield At(1, 1)
        outbox.batches(Appended(data, 0, BEGINNING, point))
        outbox.put(At(2, 2))
        outbox.put_token()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.send, Welcome(2, 10, Start.LOG), start())
            await wait_all_tasks_blocked()
            outbox.put_token()
            await wait_all_tasks_blocked()
            scope.cancel()
    kinds = [type(message) for message in sent.messages]
    assert kinds == [Welcome, Token, At, Token, PushedBatch, PushedBatch, At, Token]
    assert [message.token for message in sent.messages if isinstance(message, Token)] == [1, 2, 3]
