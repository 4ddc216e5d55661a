"""The follower's side of a link: from HELLO to the end of the link.

`Following` keeps what outlives a link: who this process is, how far its image is, and until when it provably received
everything. The caller finds the controller, connects, and calls `follow` for each connection. `follow` says by its
error why the link ended. The image, its watches and the waiting calls stay, so a lost link breaks none of them (C5).

One task takes the frames in order, and shows each change set before it takes the next frame. So an answer counts only
when the image holds the state behind it (C6).

| a frame                               | what the follower does                                    |
|---------------------------------------|-----------------------------------------------------------|
| WELCOME, first                        | sends its writes, its questions and signs of life         |
| REFUSED, first                        | ends the link; off the chain: the store must end          |
| IMAGE, BATCH                          | shows it (`received_log`)                                 |
| ANSWER, AT, TOKEN                     | wakes who waits for it; ignores it if nobody does         |
| anything else, or another epoch       | ends the link                                             |

The controller counts as silent if a question has no answer within the silence time. While this process shows what it
has received, that time stands still, because the answer may stand behind it.
"""

from collections.abc import Awaitable, Callable
from math import inf
from random import Random
from typing import Final

import trio

from storage.errors import ExpectedError
from storage.group_commit import let_others_join
from storage.metadata.cluster.barriers import Barriers
from storage.metadata.cluster.deadlines import LinkProof, beat_seconds, silence_seconds
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.link_streams import LinkLost, LinkStream
from storage.metadata.cluster.messages import (
    Alive,
    Answer,
    At,
    Hello,
    ImagePart,
    LinkRefusal,
    Message,
    PushedBatch,
    Refuse,
    Token,
    Welcome,
)
from storage.metadata.cluster.received_log import CannotFollow, ReceivedLog
from storage.metadata.cluster.writer import Writer
from storage.signal import Signal

JITTER: Final = 0.25
"""A process waits up to this part of the silence time longer, so that not all of them seek at once."""


class LinkRefused(ExpectedError):
    """The process that was asked serves no link to this one. Another process may be the controller."""

    retriable = True

    def __init__(self, reason: LinkRefusal) -> None:
        super().__init__(f"the link was refused: {reason.name.lower().replace('_', ' ')}")
        self.reason = reason


class Following:
    """See the module's docstring."""

    def __init__(
        self,
        log: ReceivedLog,
        writer: Writer,
        barriers: Barriers,
        *,
        broker: str,
        timeout: float,
        random: Random,
    ) -> None:
        self.timeout = timeout
        """The session timeout in seconds. The controller's counts, once a link was welcomed."""
        self.session = 0
        """The session of the link; 0 before the first link."""
        self.proof = LinkProof()
        self.renewed = Signal()
        """Set when `proof` or `timeout` may have changed."""
        self.proven = trio.lowlevel.ParkingLot()
        """Who waits until `proof` is renewed."""
        self.links = 0
        """How many links were welcomed."""
        self.is_linked = False
        """Whether a link works now."""
        self.log = log
        self.writer = writer
        self.barriers = barriers
        self.random = random
        self._broker = broker
        # It guards nothing. 0 stands for none.
        self.nonce = 1 + random.getrandbits(63)
        """Tells this process's store apart from all others, whatever its role."""
        self._attempt = 0

    async def follow(
        self,
        stream: trio.abc.Stream,
        epoch: int,
        cluster: str,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve one link to the controller of `epoch`. Starts when it was welcomed. Closes the stream.

        The HELLO names `cluster`, and the process at the other end must have the same.
        Returns only when it is cancelled.

        Raises:
            LinkLost, LinkError: the link has ended. Another one may work.
            LinkRefused: the process at the other end gives no link. Look for the controller again.
            CannotFollow: the store must end.
        """
        self._attempt += 1
        place = self.log.place
        hello = Hello(cluster, self._broker, self.nonce, self._attempt, self.session, place)
        try:
            await _Link(self, LinkStream(stream, epoch), task_status).run(hello)
        finally:
            self.is_linked = False
            await trio.aclose_forcefully(stream)

    def welcomed(self, welcome: Welcome) -> None:
        """A new link works."""
        self.links += 1
        self.is_linked = True
        self.proof.welcomed(is_new_session=welcome.session != self.session)
        self.session = welcome.session
        self.timeout = welcome.timeout_ms / 1000
        self.renewed.set()


class _Link:
    """One link, and its tasks."""

    def __init__(self, following: Following, stream: LinkStream, task_status: trio.TaskStatus[None]) -> None:
        self._following = following
        self._stream = stream
        self._task_status = task_status
        self._nursery: trio.Nursery
        self._ended: ExpectedError | None = None
        self._token = 0
        """The newest token that arrived."""
        self._answered = Signal()
        """Set when a question is answered, so the next one may be asked."""
        self._asked = Signal()
        """Set when a question was asked."""
        self._showing_since: float | None = None
        """While what was received is being shown: since when."""
        self._idle = Signal()
        """Set when it was shown."""
        self._busy = 0.0
        """How long that took so far since the newest question, in seconds."""

    async def run(self, hello: Hello) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._following.proof.hello_sent(trio.current_time())
            self._start(self._watch_silence)
            self._start(self._receive, hello)
        error, self._ended = self._ended, None
        assert error is not None, "it ends by an error"
        raise error

    def _start(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        self._nursery.start_soon(self._until_lost, work, *args)

    async def _until_lost(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """The first task that finds the end of the link ends the others. Its error is the link's."""
        try:
            await work(*args)
        except (LinkLost, LinkError, LinkRefused, CannotFollow) as error:
            self._ended = self._ended or error
            self._nursery.cancel_scope.cancel()

    async def _receive(self, hello: Hello) -> None:
        await self._stream.send(hello)
        self._begin(await self._next())
        while True:
            message = await self._next()
            self._showing_since = trio.current_time()
            await self._take(message)
            self._busy += trio.current_time() - self._showing_since
            self._showing_since = None
            self._idle.set()

    async def _next(self) -> Message:
        epoch, message = await self._stream.receive()
        if isinstance(message, Refuse):
            if message.reason is LinkRefusal.OFF_CHAIN:
                raise CannotFollow("this process has shown what the metadata log does not hold")
            raise LinkRefused(message.reason)
        if epoch != self._stream.epoch:
            raise LinkError(f"a frame of epoch {epoch} came over a link of epoch {self._stream.epoch}")
        return message

    def _begin(self, welcome: Message) -> None:
        if not isinstance(welcome, Welcome):
            raise LinkError(f"a link began with {type(welcome).__name__}")
        following = self._following
        following.log.begin(welcome.start)
        following.welcomed(welcome)
        self._start(following.writer.send, welcome.session, self._stream.send)
        self._start(following.barriers.ask, self._stream.send)
        self._start(self._give_signs_of_life)
        self._task_status.started()

    async def _take(self, message: Message) -> None:
        following = self._following
        match message:
            case PushedBatch():
                await following.log.take_batch(message)
                following.barriers.shown(following.log.last.sequence)
            case ImagePart():
                await following.log.take_part(message)
                following.barriers.shown(following.log.last.sequence)
            case Answer(number, outcome):
                following.writer.answered(number, outcome)
            case At(asked, sequence):
                following.barriers.answered(asked, sequence)
            case Token(token):
                if token > self._token:
                    self._token = token
                    following.proof.token_received()
                    following.renewed.set()
                    following.proven.unpark_all()
                    self._answered.set()
            case _:
                raise LinkError(f"the metadata controller sent {type(message).__name__}")

    async def _give_signs_of_life(self) -> None:
        # At once for the first token, so that a new link soon renews what an outage has left.
        delay = 0.0
        while True:
            await self._answered.wait()
            await trio.sleep(delay)
            delay = beat_seconds(self._following.timeout)
            self._following.proof.alive_sent(trio.current_time())
            self._busy = 0.0
            self._asked.set()
            await self._stream.send(Alive(self._token))

    async def _watch_silence(self) -> None:
        following = self._following
        patience = silence_seconds(following.timeout) * (1 + JITTER * following.random.random())
        while True:
            silent_at = following.proof.silent_at(patience) + self._busy
            if silent_at == inf:
                await self._asked.wait()
            elif self._showing_since is not None:
                await self._idle.wait()
            elif trio.current_time() < silent_at:
                await trio.sleep_until(silent_at)
                # After a stall of this process, what has arrived meanwhile is taken first.
                await let_others_join()
            else:
                raise LinkLost(f"the metadata controller was silent for {patience:.1f} s")
