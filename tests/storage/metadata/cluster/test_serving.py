"""The controller's side, as a peer sees it that sends what it likes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from storage.metadata.batches import BEGINNING, Point
from storage.metadata.cluster import ops_codec, served_link, serving
from storage.metadata.cluster.answers import Conflicted, Refused
from storage.metadata.cluster.arrivals import WINDOW
from storage.metadata.cluster.frames import Frame, Frames, encode_frame
from storage.metadata.cluster.messages import (
    Alive,
    Answer,
    At,
    Barrier,
    End,
    Hello,
    ImagePart,
    LinkRefusal,
    Message,
    Open,
    Place,
    Refuse,
    Start,
    Token,
    Welcome,
    Write,
)
from storage.metadata.cluster.serving import LinkServer
from storage.metadata.outcomes import Made
from storage.metadata.proposed import EndSessions
from storage.metadata.store import Delete, Op, Put, PutSequential, starting_with
from tests.support.led_store import LedStore, led
from tests.support.linked_stores import CLUSTER, TIMEOUT

NOWHERE = Place(0, BEGINNING, 0)


class Peer:
    """The other end of a link, frame by frame."""

    def __init__(self, stream: trio.abc.Stream, epoch: int) -> None:
        self._stream = stream
        self._epoch = epoch
        self._frames = Frames()
        self._received: list[Message] = []
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the other end has closed."""
        return self._is_closed

    async def send(self, *messages: Message, epoch: int | None = None) -> None:
        """Send messages."""
        for message in messages:
            await self._stream.send_all(encode_frame(Frame(self._epoch if epoch is None else epoch, message)))

    async def send_bytes(self, data: bytes) -> None:
        """Send what may be no frame."""
        await self._stream.send_all(data)

    async def receive(self) -> None:
        """Take what comes, until the other end closes."""
        while data := await self._stream.receive_some():
            self._frames.feed(data)
            while (frame := self._frames.next_frame()) is not None:
                self._received.append(frame.message)
        self._is_closed = True

    async def received(self) -> list[Message]:
        """Everything that has come since the last call, once nothing more comes."""
        await wait_all_tasks_blocked()
        messages, self._received = self._received, []
        return messages


class SlowToClose(trio.abc.Stream):
    """A stream whose end takes as long as the test wants."""

    def __init__(self, stream: trio.abc.Stream, close_hook: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._close_hook = close_hook

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            await self._close_hook()
        await self._stream.aclose()


class Served:
    """A server, and connections to it."""

    def __init__(self, reign: LedStore, nursery: trio.Nursery) -> None:
        self.reign = reign
        self.server = LinkServer(reign.reign, cluster=CLUSTER, timeout=TIMEOUT)
        self.nursery = nursery

    def connect(self, close_hook: Callable[[], Awaitable[None]] | None = None) -> Peer:
        """A new connection. At its end, the server waits for `close_hook`, as for another task that has its turn."""
        near, far = memory_stream_pair()
        peer = Peer(near, self.reign.reign.epoch)
        self.nursery.start_soon(self.server.serve, far if close_hook is None else SlowToClose(far, close_hook))
        self.nursery.start_soon(peer.receive)
        return peer

    async def link(self, *, nonce: int = 7, attempt: int = 1, place: Place | None = None) -> Peer:
        """A link that was welcomed, from which everything was received."""
        peer = self.connect()
        here = Place(self.reign.reign.epoch, self.reign.point, self.reign.image.revision)
        await peer.send(hello(nonce=nonce, attempt=attempt, place=place or here))
        messages = await peer.received()
        assert isinstance(messages[0], Welcome)
        return peer


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    """A server that runs."""
    async with led() as reign, trio.open_nursery() as nursery:
        await reign.put("/a", b"")
        found = Served(reign, nursery)
        await nursery.start(found.server.run)
        try:
            yield found
        finally:
            reign.disk.resume()
            nursery.cancel_scope.cancel()


def hello(
    *, cluster: str = CLUSTER, broker: str = "b2", nonce: int = 7, attempt: int = 1, place: Place = NOWHERE
) -> Hello:
    """HELLO with some of its fields."""
    return Hello(cluster, broker, nonce, attempt, 0, place)


def write(number: int, *ops: Op, below: int = 1, is_last: bool = True) -> Write:
    """A part of a change set."""
    (part,) = ops_codec.parts(ops)
    return Write(number, below, False, is_last, part)


@pytest.mark.parametrize(
    ("message", "epoch", "reason"),
    [
        (hello(), 2, LinkRefusal.NOT_CONTROLLER),
        (hello(cluster="other"), 1, LinkRefusal.OTHER_CLUSTER),
        (hello(place=Place(1, Point(9, 9), 9)), 1, LinkRefusal.OFF_CHAIN),
        (hello(place=Place(1, Point(1, 9), 99)), 1, LinkRefusal.OFF_CHAIN),
    ],
)
async def test_a_link_is_refused(message: Hello, epoch: int, reason: LinkRefusal, autojump_clock: MockClock) -> None:
    """C13, C2: with the reason, as the last frame, and without a session."""
    async with served() as found:
        peer = found.connect()
        await peer.send(message, epoch=epoch)
        assert await peer.received() == [Refuse(reason)]
        assert peer.is_closed
        assert [live for live in found.reign.image.sessions.values() if reason is not LinkRefusal.OFF_CHAIN] == []


async def test_another_version_of_the_protocol_is_refused(autojump_clock: MockClock) -> None:
    """C22: in a frame that every version understands."""
    async with served() as found:
        peer = found.connect()
        encoded = bytearray(encode_frame(Frame(1, hello())))
        encoded[13:15] = (99).to_bytes(2)
        await peer.send_bytes(bytes(encoded))
        assert await peer.received() == [Refuse(LinkRefusal.OTHER_PROTOCOL)]
        assert peer.is_closed


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"", bytes(20), encode_frame(Frame(1, Alive(1)))])
async def test_a_stranger_is_closed(garbage: bytes, autojump_clock: MockClock) -> None:
    """E8: whatever it sends or does not send, its connection is closed in time, and nobody else notices."""
    async with served() as found:
        peer = found.connect()
        await peer.send_bytes(garbage)
        await trio.sleep(serving.HELLO_SECONDS_MAX + 1)
        assert await peer.received() == []
        assert peer.is_closed
        assert found.server.peers == 0


async def test_the_newest_attempt_has_the_link(autojump_clock: MockClock) -> None:
    """M22: an older connection is closed before the newer one is served, and a lower attempt is refused."""
    async with served() as found:
        first = await found.link(attempt=1)
        third = await found.link(attempt=3)
        await first.received()
        assert first.is_closed
        for attempt in (2, 3):
            late = found.connect()
            await late.send(hello(attempt=attempt))
            assert await late.received() == [Refuse(LinkRefusal.OLD_ATTEMPT)]
        await third.send(Barrier(1))
        assert await third.received() == [At(1, found.reign.point.sequence)]
        assert len(found.reign.image.sessions) == 1
        assert found.server.links == 1


async def test_a_store_that_connects_again_while_its_session_is_opened_has_one(autojump_clock: MockClock) -> None:
    """M18: the first link's end does not leave a session that its store never hears of."""
    async with served() as found:
        found.reign.disk.stop()
        first, second = found.connect(), found.connect()
        await first.send(hello(attempt=1))
        assert await first.received() == []
        await second.send(hello(attempt=2))
        assert await second.received() == []
        found.reign.disk.resume()
        (welcome, *_rest) = await second.received()
        assert isinstance(welcome, Welcome)
        assert list(found.reign.image.sessions) == [welcome.session]
        assert first.is_closed


async def test_a_store_that_was_forgotten_meanwhile_has_one_link_too(autojump_clock: MockClock) -> None:
    """M22: its session ends while its second connection waits for the end of the first one. The third one wins."""
    closes = trio.Event()
    async with served() as found:
        first = found.connect(closes.wait)
        await first.send(hello(attempt=1))
        (welcome, *_rest) = await first.received()
        assert isinstance(welcome, Welcome)
        second = found.connect()
        await second.send(hello(attempt=2))
        assert await second.received() == []
        await found.reign.reign.propose(EndSessions((welcome.session,)))
        await trio.sleep(TIMEOUT)
        assert found.server.peers == 0
        third = found.connect()
        await third.send(hello(attempt=3))
        assert isinstance((await third.received())[0], Welcome)
        closes.set()
        assert await second.received() == [Refuse(LinkRefusal.OLD_ATTEMPT)]
        await third.send(Barrier(1))
        assert At(1, found.reign.point.sequence) in await third.received()
        assert found.server.links == 1


async def test_a_repeated_hello_finds_its_session(autojump_clock: MockClock) -> None:
    """M22: the session identifies the writer, so it stays over links and controllers."""
    async with served() as found:
        await found.link(attempt=1)
        sessions = dict(found.reign.image.sessions)
        await found.link(attempt=2)
        assert found.reign.image.sessions.keys() == sessions.keys()
        (session,) = sessions.values()
        assert (session.owner, session.nonce) == ("b2", 7)
        # The next controller knows it from the log.
        async with trio.open_nursery() as nursery:
            successor = Served(found.reign, nursery)
            await nursery.start(successor.server.run)
            await successor.link(attempt=1)
            assert found.reign.image.sessions.keys() == sessions.keys()
            nursery.cancel_scope.cancel()


async def test_what_follows_welcome(autojump_clock: MockClock) -> None:
    """C5: the log if the ring reaches the place, else the image; then a token."""
    async with served() as found:
        place = Place(1, found.reign.point, found.reign.image.revision)
        await found.reign.put("/b", b"")
        peer = found.connect()
        await peer.send(hello(place=place))
        welcome, *rest = await peer.received()
        assert isinstance(welcome, Welcome)
        assert (welcome.start, welcome.timeout_ms) == (Start.LOG, TIMEOUT * 1000)
        # The put, and the session of the link.
        assert sorted(type(message).__name__ for message in rest) == ["PushedBatch", "PushedBatch", "Token"]
        found.reign.ring_bytes = 0
        await found.reign.put("/c", b"")
        peer = found.connect()
        await peer.send(hello(attempt=2, place=place))
        welcome, *parts = await peer.received()
        assert isinstance(welcome, Welcome)
        assert welcome.start is Start.IMAGE
        kinds = [type(part) for part in parts]
        assert kinds.count(ImagePart) == 2
        assert kinds.count(Token) == 1


async def test_a_write_is_decided_once_and_answered_again(autojump_clock: MockClock) -> None:
    """M22: over the same writer's next link too; below what the writer has answers for there is no answer."""
    async with served() as found:
        peer = await found.link()
        await peer.send(write(1, Put("/x", b"1", 0)), write(2, Put("/x", b"2", 0)))
        answers = [message for message in await peer.received() if isinstance(message, Answer)]
        assert [answer.number for answer in answers] == [1, 2]
        assert isinstance(answers[0].outcome, Made)
        assert answers[1].outcome == Conflicted("/x", 0, answers[0].outcome.revision)
        again = await found.link(attempt=2)
        await again.send(write(1, Put("/x", b"1", 0)))
        assert await again.received() == [answers[0]]
        await again.send(write(3, Delete("/x"), below=3), write(2, Put("/x", b"2", 0), below=1))
        answers = [message for message in await again.received() if isinstance(message, Answer)]
        assert [answer.number for answer in answers] == [3]
        assert await found.reign.get("/x") is None


async def test_a_refusal_of_an_older_link_is_not_told_before_the_copy_comes(autojump_clock: MockClock) -> None:
    """M22: otherwise its writer would take it for refused, and the copy would be made behind that."""
    async with served() as found:
        version = await found.reign.put("/x", b"")
        peer = await found.link()
        writes = write(1, Put("/y", b"")), write(2, Put("/x", b"1", 99))
        found.reign.disk.stop()
        await peer.send(*writes)
        assert await peer.received() == []
        newer = found.connect()
        await newer.send(hello(attempt=2))
        assert await newer.received() == []
        found.reign.disk.resume()
        assert [message for message in await newer.received() if isinstance(message, Answer)] == []
        await newer.send(*writes)
        made, refused = [message for message in await newer.received() if isinstance(message, Answer)]
        assert isinstance(made.outcome, Made)
        assert refused == Answer(2, Conflicted("/x", 99, version))
        assert made.outcome.revision == found.reign.image.revision


async def test_what_breaks_the_contract_is_refused(autojump_clock: MockClock) -> None:
    """E8, M1: another broker's change set is measured before it is decided."""
    async with served() as found:
        peer = await found.link()
        await peer.send(
            write(1, Put("", b"")), write(2, Put("/big", bytes(1 << 20))), write(3, Delete("/a"), Delete("/a"))
        )
        refusals = [message.outcome for message in await peer.received() if isinstance(message, Answer)]
        assert [refusal.reason.name for refusal in refusals if isinstance(refusal, Refused)] == [
            "INVALID",
            "TOO_LARGE",
            "INVALID",
        ]
        await peer.send(Barrier(1))
        assert await peer.received() == [At(1, found.reign.point.sequence)]


@pytest.mark.parametrize(
    "messages",
    [
        [hello(attempt=9)],
        [Token(1)],
        [Welcome(1, 1, Start.LOG)],
        [write(1, Put("/x", b""), is_last=False), write(2, Put("/x", b""))],
        [write(WINDOW + 1, Put("/x", b""))],
        [write(0, Put("/x", b""))],
        [Write(1, 1, False, True, b"\xff")],
    ],
)
async def test_what_breaks_the_protocol_ends_the_link(messages: list[Message], autojump_clock: MockClock) -> None:
    """E8: only this link, and its broker may come again."""
    async with served() as found:
        other = await found.link(nonce=8)
        peer = await found.link()
        await peer.send(*messages)
        await peer.received()
        assert peer.is_closed
        await found.link(attempt=10)
        await other.send(Barrier(1))
        assert At(1, found.reign.point.sequence) in await other.received()
        assert await found.reign.get("/x") is None


async def test_a_write_that_comes_twice_over_a_link_ends_it(autojump_clock: MockClock) -> None:
    """E8, M22: while it is being decided. It is made once, and the other links go on."""
    async with served() as found:
        other = await found.link(nonce=8)
        peer = await found.link()
        found.reign.disk.stop()
        await peer.send(write(1, PutSequential("/x", b"", "p")), write(1, PutSequential("/x", b"", "p")))
        await peer.received()
        assert peer.is_closed
        found.reign.disk.resume()
        await other.send(Barrier(1))
        assert At(1, found.reign.point.sequence) in await other.received()
        assert len(await found.reign.scan(*starting_with("/x"))) == 1


async def test_a_frame_of_another_epoch_ends_the_link(autojump_clock: MockClock) -> None:
    """C3: a follower that takes this process for another controller gets nothing from it."""
    async with served() as found:
        peer = await found.link()
        await peer.send(write(1, Put("/x", b"")), epoch=2)
        await peer.received()
        assert peer.is_closed
        assert await found.reign.get("/x") is None


async def test_the_size_of_undecided_writes_is_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8: a link that sends more than a follower may ends. A single large change set is allowed.

    What has its answer counts no longer.
    """
    monkeypatch.setattr(served_link, "CHANGE_SET_BYTES_MAX", 1000)
    async with served() as found:
        peer = await found.link()
        for number in range(1, 4):
            await peer.send(write(number, Put("/w", bytes(600))))
            assert any(isinstance(message, Answer) for message in await peer.received())
        found.reign.disk.stop()
        await peer.send(write(4, Put("/x", bytes(2000))))
        await peer.send(Barrier(1))
        assert await peer.received() == [At(1, found.reign.point.sequence)]
        await peer.send(write(5, Put("/y", bytes(10))))
        await peer.received()
        assert peer.is_closed
        found.reign.disk.resume()


async def test_sessions_over_a_link(autojump_clock: MockClock) -> None:
    """M18: they are opened and ended once, and are bound to the store that opened them."""
    async with served() as found:
        peer = await found.link()
        await peer.send(Open(1, 1, 5000))
        (answer,) = [message for message in await peer.received() if isinstance(message, Answer)]
        await peer.send(Open(1, 1, 5000))
        assert await peer.received() == [answer]
        assert isinstance(answer.outcome, Made)
        session = found.reign.image.sessions[answer.outcome.revision]
        assert (session.owner, session.nonce, session.timeout_ms) == ("", 7, 5000)
        assert len(found.reign.image.sessions) == 2
        await peer.send(End(2, 2, EndSessions((answer.outcome.revision,))))
        await peer.received()
        assert len(found.reign.image.sessions) == 1


async def test_only_the_newest_token_renews(autojump_clock: MockClock) -> None:
    """C13: signs of life alone keep no session. The link of an ended session is closed."""
    async with served() as found:
        peer = await found.link()
        for _ in range(round(TIMEOUT)):
            assert not peer.is_closed
            await peer.send(Alive(0))
            await trio.sleep(1)
        await trio.sleep(2)
        assert peer.is_closed
        assert not found.reign.image.sessions
        assert found.server.peers == 0
        # Not even the token that it never echoed.
        assert not found.server._deadlines._sent


async def test_the_links_end_with_the_reign(autojump_clock: MockClock) -> None:
    """C3: nobody stays linked to a process that decides nothing more."""
    async with served() as found:
        peer = await found.link()
        other = Served(found.reign, found.nursery)
        async with trio.open_nursery() as nursery:
            await nursery.start(other.server.run)
            second = await other.link(nonce=9)
            nursery.cancel_scope.cancel()
        await second.received()
        assert second.is_closed
        assert not peer.is_closed


async def test_no_link_before_or_after_the_reign(autojump_clock: MockClock) -> None:
    """C3: a server that does not run refuses."""
    near, far = memory_stream_pair()
    async with led() as reign, trio.open_nursery() as nursery:
        nursery.start_soon(LinkServer(reign.reign, cluster=CLUSTER, timeout=TIMEOUT).serve, far)
        peer = Peer(near, 1)
        nursery.start_soon(peer.receive)
        await peer.send(hello())
        assert await peer.received() == [Refuse(LinkRefusal.NOT_CONTROLLER)]
