"""The controller's side of all links: who is connected, and which sessions live.

A store of another process is known by its nonce. It has one living link, that of its highest attempt. An older one is
closed, with everything that it has not yet handed over, before the newer one is served. So no delayed write of an old
connection is decided behind its repeat. Each link has a session, which identifies its writer. The first HELLO of a
store opens it, and a repeated HELLO finds it by the nonce.

| a HELLO                                                        | answer                                   |
|----------------------------------------------------------------|------------------------------------------|
| of another version of the protocol                             | REFUSED, other protocol                  |
| for another reign, or after this one has ended                 | REFUSED, not the controller              |
| of another cluster                                             | REFUSED, other cluster                   |
| of an attempt that is not above the highest known one          | REFUSED, old attempt                     |
| from a place that the log does not hold, or above its revision | REFUSED, off the chain                   |
| from a place that the ring still reaches                       | WELCOME, then the log behind that place  |
| from any other place                                           | WELCOME, then the image                  |

Sessions end by `deadlines`. When the session of a link ends, all sessions of that store end with it. So no session
stays that its process does not know of, and no outcome of a writer that is gone.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import structlog
import trio

from storage.group_commit import let_others_join
from storage.metadata.chain import OffChain
from storage.metadata.cluster.deadlines import Deadlines, Terms, beat_seconds
from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.frames import SESSIONS_MAX, OtherProtocol
from storage.metadata.cluster.image_transfer import image_parts
from storage.metadata.cluster.link_streams import LinkLost, LinkStream
from storage.metadata.cluster.messages import Hello, LinkRefusal, Message, Place, Refuse, Start, Welcome
from storage.metadata.cluster.pushing import Outbox, pushed
from storage.metadata.cluster.reign import Reign
from storage.metadata.cluster.served_link import ServedLink
from storage.metadata.proposed import EndSessions, OpenSession
from storage.metadata.snapshots import View
from storage.metadata.store import StoreFull, StoreUnavailable

HELLO_SECONDS_MAX: Final = 10.0
"""How long a connection may take to send HELLO, and to take a refusal."""

PEERS_MAX: Final = 1024
"""Stores of other processes, with a link or a living session. A further one is closed until others have gone."""

log = structlog.get_logger(__name__)


class _Connection:
    """A connection that sent a good HELLO, until everything of it is gone."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self.gone = trio.Event()
        self.why = ""

    def end(self, why: str) -> None:
        self.why = self.why or why
        self._scope.cancel()


class _Peer:
    """What the controller knows of the store of another process."""

    def __init__(self) -> None:
        self.attempt = -1
        """The highest one."""
        self.session = 0
        """The session of its links; 0 before it is found or opened."""
        self.connection: _Connection | None = None


class LinkServer:
    """See the module's docstring. It belongs to one reign."""

    def __init__(self, reign: Reign, *, cluster: str, timeout: float, own_nonce: int = 0) -> None:
        self._reign = reign
        self._cluster = cluster
        self._timeout = timeout
        self._own_nonce = own_nonce
        """The nonce of this process's own sessions. They live as long as the reign, and nobody else judges them."""
        self._deadlines = Deadlines(beat_seconds(timeout))
        self._peers: dict[int, _Peer] = {}
        self._is_serving = False

    @property
    def links(self) -> int:
        """How many links there are."""
        return sum(peer.connection is not None for peer in self._peers.values())

    @property
    def peers(self) -> int:
        """How many stores of other processes are known."""
        return len(self._peers)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End the sessions that are due, until the reign ends or this is cancelled. Then all links end.

        Every session on record begins with its full timeout.
        """
        self._deadlines.reign_begun(self._terms(), trio.current_time())
        self._is_serving = True
        task_status.started()
        try:
            while True:
                await trio.sleep(beat_seconds(self._timeout))
                # What the links have received is taken first.
                await let_others_join()
                await self._end_due_sessions()
                self._forget_the_gone()
        except StoreUnavailable as ended:
            log.info("links end with the reign", epoch=self._reign.epoch, reason=str(ended))
        finally:
            self._is_serving = False
            for peer in self._peers.values():
                if peer.connection is not None:
                    peer.connection.end("the reign has ended")

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection, from HELLO until the link ends. Closes it. Raises nothing that the other side causes."""
        with trio.CancelScope() as scope:
            connection = _Connection(scope)
            link_stream = LinkStream(stream, self._reign.epoch)
            broker = "unknown"
            try:
                hello = await self._hello(link_stream)
                if isinstance(hello, Hello):
                    broker = hello.broker
                    hello = await self._link(link_stream, hello, connection)
                log.info("a link was refused", broker=broker, reason=hello.name)
                with trio.move_on_after(HELLO_SECONDS_MAX):
                    await link_stream.send(Refuse(hello))
            except (LinkLost, LinkError, StoreUnavailable) as ended:
                log.info("a link has ended", broker=broker, reason=str(ended))
            finally:
                try:
                    await trio.aclose_forcefully(stream)
                finally:
                    # A cancelled close has closed it too.
                    connection.gone.set()
        if connection.why:
            log.info("a link was ended", broker=broker, reason=connection.why)

    async def _hello(self, stream: LinkStream) -> Hello | LinkRefusal:
        with trio.move_on_after(HELLO_SECONDS_MAX):
            try:
                epoch, hello = await stream.receive()
            except OtherProtocol:
                return LinkRefusal.OTHER_PROTOCOL
            if not isinstance(hello, Hello) or not hello.broker or not hello.nonce:
                raise LinkError("a link begins with HELLO, a broker's name and a nonce")
            if epoch != self._reign.epoch or not self._is_serving:
                return LinkRefusal.NOT_CONTROLLER
            return hello if hello.cluster == self._cluster else LinkRefusal.OTHER_CLUSTER
        raise LinkLost(f"there was no HELLO for {HELLO_SECONDS_MAX:g} s")

    async def _link(self, stream: LinkStream, hello: Hello, connection: _Connection) -> LinkRefusal:
        """Serve the link. Returns only why there is none."""
        if len(self._peers) >= PEERS_MAX and hello.nonce not in self._peers:
            raise LinkError(f"{PEERS_MAX} other stores are known, and no more are served")
        peer = self._peers.setdefault(hello.nonce, _Peer())
        if hello.attempt <= peer.attempt:
            return LinkRefusal.OLD_ATTEMPT
        peer.attempt = hello.attempt
        while peer.connection is not None:
            peer.connection.end("its store has connected again")
            await peer.connection.gone.wait()
            if hello.attempt < peer.attempt or self._peers.get(hello.nonce) is not peer:
                # A newer one has come, or may have come, because the store was forgotten meanwhile.
                return LinkRefusal.OLD_ATTEMPT
        peer.connection = connection
        try:
            await self._find_session(peer, hello)
            return await self._serve(stream, hello, peer.session, connection)
        finally:
            self._deadlines.link_lost(hello.nonce)
            peer.connection = None

    async def _serve(self, stream: LinkStream, hello: Hello, session: int, connection: _Connection) -> LinkRefusal:
        reign, nonce = self._reign, hello.nonce
        outbox = Outbox(
            stream,
            token=lambda: self._deadlines.token_sent(nonce, trio.current_time()),
            overflow=lambda: connection.end("it reads too slowly"),
        )
        link = ServedLink(
            reign,
            stream,
            outbox,
            nonce=nonce,
            session=session,
            echoed=lambda token: self._deadlines.echoed(nonce, token),
        )
        place = await reign.attach(outbox)
        # No pause from here to the end of the step in which the link begins: place, log and image belong together.
        with ExitStack() as stack:
            stack.callback(reign.detach, outbox)
            try:
                behind = reign.log_behind(hello.place)
                is_off_chain = behind is None and hello.place.revision > place.revision
            except OffChain:
                behind, is_off_chain = None, True
            if is_off_chain:
                # Only who is the controller may say so, because that store must end. `attach` has looked at the fence
                # since the HELLO came, so no later controller has written what the store holds.
                return LinkRefusal.OFF_CHAIN
            if session not in reign.image.sessions:
                raise LinkLost("its session has ended")
            self._note_sessions()
            messages: Iterator[Message]
            if behind is not None:
                start, messages = Start.LOG, pushed(behind)
            else:
                # The view is closed as soon as it was sent, because every change costs it a look.
                closing = stack.enter_context(ExitStack())
                start, messages = Start.IMAGE, _image(closing.enter_context(reign.view()), place, closing)
            log.info("a link begins", broker=hello.broker, session=session, start=start.name)
            await link.run(Welcome(session, round(self._timeout * 1000), start), messages)
        raise AssertionError("a link ends by an error")

    async def _find_session(self, peer: _Peer, hello: Hello) -> None:
        """The session of the link, opened if there is none."""
        sessions = self._reign.image.sessions
        if peer.session in sessions:
            return
        mine = [session for session, live in sessions.items() if live.nonce == hello.nonce and live.owner]
        peer.session = max(mine, default=0)
        if not peer.session:
            opening = OpenSession(round(self._timeout * 1000), hello.broker, hello.nonce)
            # Shielded, so that no session is opened without a peer that knows it. It takes one group commit.
            with trio.CancelScope(shield=True):
                peer.session = (await self._reign.propose(opening)).revision

    def _terms(self) -> dict[int, Terms]:
        """What keeps each session of other processes alive, as it is on record."""
        return {
            session: Terms(live.nonce, live.timeout_ms / 1000)
            for session, live in self._reign.image.sessions.items()
            if live.nonce != self._own_nonce
        }

    def _note_sessions(self) -> None:
        self._deadlines.on_record(self._terms(), trio.current_time())

    async def _end_due_sessions(self) -> None:
        self._note_sessions()
        due = set(self._deadlines.due(trio.current_time()))
        sessions = self._reign.image.sessions
        stores = {sessions[session].nonce for session in due if sessions[session].owner}
        ending = [session for session, live in sessions.items() if session in due or live.nonce in stores]
        try:
            for begin in range(0, len(ending), SESSIONS_MAX):
                part = tuple(ending[begin : begin + SESSIONS_MAX])
                log.warning("sessions have ended, because their process was silent", sessions=part)
                await self._reign.propose(EndSessions(part))
        except StoreFull as full:
            log.error("sessions that are due cannot be ended", reason=str(full))
        self._note_sessions()

    def _forget_the_gone(self) -> None:
        sessions = self._reign.image.sessions
        for nonce, peer in list(self._peers.items()):
            if peer.session in sessions:
                continue
            if peer.connection is None:
                del self._peers[nonce]
            elif peer.session:
                peer.connection.end("its session has ended")


def _image(view: View, place: Place, closing: ExitStack) -> Iterator[Message]:
    with closing:
        yield from image_parts(view, place)
