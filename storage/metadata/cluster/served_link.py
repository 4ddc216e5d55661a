"""One link at the controller, from WELCOME to its end: takes what the follower sends, and answers.

| a frame          | what the controller does                                                                          |
|------------------|---------------------------------------------------------------------------------------------------|
| WRITE, a part    | joins the parts; decides the whole change set once                                                |
| OPEN, END        | decides it once                                                                                   |
| BARRIER          | looks at the fence, then answers how far the log is                                               |
| ALIVE            | renews the sessions of the link, if it echoes the newest token; then the next token goes out      |
| anything else    | ends the link                                                                                     |

Writes enter the committer's queue in the order in which they arrive, and are answered as they are decided. A write that
was being decided when an earlier link ended is decided once all the same: its copy over this link shares the decision.
A refusal goes only to the link that the copy came over. Otherwise the copy could be made behind its refusal.
"""

from collections.abc import Awaitable, Callable, Iterator

import trio

from storage.errors import ExpectedError
from storage.metadata.cluster.answers import Outcome, refusal_of
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.link_streams import LinkLost, LinkStream
from storage.metadata.cluster.messages import Alive, Answer, At, Barrier, End, Message, Open, Welcome, Write
from storage.metadata.cluster.ops_codec import CHANGE_SET_BYTES_MAX, Assembly
from storage.metadata.cluster.pushing import Outbox
from storage.metadata.cluster.reign import Reign
from storage.metadata.delta import measure_in_steps
from storage.metadata.outcomes import WriteId
from storage.metadata.pacing import paced
from storage.metadata.proposed import Commit, OpenSession, Proposed
from storage.metadata.store import ChangeSetTooLarge, InvalidOperation, MetadataError, Op, StoreFull, StoreUnavailable


class ServedLink:
    """See the module's docstring."""

    def __init__(
        self,
        reign: Reign,
        stream: LinkStream,
        outbox: Outbox,
        *,
        nonce: int,
        session: int,
        echoed: Callable[[int], bool],
    ) -> None:
        self._reign = reign
        self._stream = stream
        self._outbox = outbox
        self._nonce = nonce
        self._session = session
        self._echoed = echoed
        """Notes a sign of life with a token. Says whether the next token is due."""
        self._assembly = Assembly()
        self._deciding: set[int] = set()
        """The numbers of the writes that are being decided."""
        self._deciding_bytes = 0
        self._nursery: trio.Nursery
        self._ended: ExpectedError | None = None

    async def run(self, welcome: Welcome, start: Iterator[Message]) -> None:
        """Serve it until it ends.

        Raises:
            LinkLost, LinkError: why it has ended.
            StoreUnavailable: the reign has ended.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._until_lost, self._outbox.send, welcome, start)
            nursery.start_soon(self._until_lost, self._receive)
        error, self._ended = self._ended, None
        assert error is not None, "it ends by an error"
        raise error

    async def _until_lost(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """The first task that finds the end of the link ends the others. Its error is the link's."""
        try:
            await work(*args)
        except (LinkLost, LinkError, StoreUnavailable) as error:
            self._ended = self._ended or error
            self._nursery.cancel_scope.cancel()

    async def _receive(self) -> None:
        while True:
            epoch, message = await self._stream.receive()
            if epoch != self._stream.epoch:
                raise LinkError(f"a frame of epoch {epoch} came over a link of epoch {self._stream.epoch}")
            await self._take(message)

    async def _take(self, message: Message) -> None:
        match message:
            case Write():
                ops = self._assembly.add(message)
                if ops is not None:
                    await self._propose_change_set(message, ops)
            case Open(_number, _answered_below, timeout_ms):
                await self._propose(message, OpenSession(timeout_ms, nonce=self._nonce))
            case End(_number, _answered_below, ending):
                await self._propose(message, ending)
            case Barrier(asked):
                self._reign.require_reigning()
                self._outbox.put(At(asked, self._reign.point.sequence))
            case Alive(token):
                if self._echoed(token):
                    self._outbox.put_token()
            case _:
                raise LinkError(f"a follower sent {type(message).__name__}")

    async def _propose_change_set(self, frame: Write, ops: tuple[Op, ...]) -> None:
        try:
            size = await paced(measure_in_steps(ops))
        except (ChangeSetTooLarge, InvalidOperation) as refusal:
            self._outbox.put(Answer(frame.number, refusal_of(refusal)))
        else:
            await self._propose(frame, Commit(ops, size), along=frame.along)

    async def _propose(self, frame: Write | Open | End, proposed: Proposed, *, along: bool = False) -> None:
        """Have it decided. Returns when it is in the committer's queue, so that the next one comes behind it."""
        write = WriteId(self._session, frame.number, frame.answered_below)
        if write.number in self._deciding:
            raise LinkError(f"write {write.number} came twice over one link")
        if self._deciding_bytes and self._deciding_bytes + proposed.size > CHANGE_SET_BYTES_MAX:
            raise LinkError(f"more than {CHANGE_SET_BYTES_MAX} bytes of change sets are without an answer")
        self._deciding.add(write.number)
        self._deciding_bytes += proposed.size
        await self._nursery.start(self._decide, proposed, write, along)

    async def _decide(
        self, proposed: Proposed, write: WriteId, along: bool, *, task_status: trio.TaskStatus[None]
    ) -> None:
        # What follows runs up to the committer's queue before anybody else has a turn.
        task_status.started()
        await self._until_lost(self._answer, proposed, write, along)

    async def _answer(self, proposed: Proposed, write: WriteId, along: bool) -> None:
        outcome: Outcome | None
        try:
            outcome = await self._reign.propose_once(proposed, write, along=along)
        except StoreFull as refusal:
            outcome = refusal_of(refusal)
        except StoreUnavailable:
            # Unknown, so there is no answer. The follower asks the next controller.
            raise
        except MetadataError as refusal:
            outcome = refusal_of(refusal)
        self._deciding.remove(write.number)
        self._deciding_bytes -= proposed.size
        if outcome is not None:
            self._outbox.put(Answer(write.number, outcome))
