"""When a session has ended: at the controller, and earlier in the process that holds it.

A sign of life proves that a broker can send. It does not prove that the broker receives, and a broker that receives
nothing serves stale state. So the two sides echo each other:

    follower                                controller
    HELLO, sent at h0              ->
                                   <-       WELCOME, TOKEN 1, sent at s1
    ALIVE 1, sent at a1            ->       echo of 1: sessions live until s1 + timeout
                                   <-       TOKEN 2, sent at s2
    now until h0 + timeout at least
    ALIVE 2, sent at a2            ->       echo of 2: sessions live until s2 + timeout
                                   <-       TOKEN 3
    now until a1 + timeout at least

Each TOKEN stands behind all batches that were pushed before it. A broker that gets no pushes gets no new token, echoes
no new token, and loses its sessions, although its signs of life arrive (C13). The follower counts from when it sent the
question that the echoed token answered: h0 is not after s1, and a1 is not after s2. So its own deadline is never later
than the controller's, whatever each message took and however the two clocks differ. A process keeps its sessions while
three round trips and two beats are shorter than the timeout.

| cut                  | at the controller     | at the follower                          |
|----------------------|-----------------------|------------------------------------------|
| nothing              | the session lives     | the session lives                        |
| controller to broker | the session ends      | the session ended before, the link too   |
| broker to controller | the session ends      | the session ended before, the link too   |
| both                 | the session ends      | the session ended before, the link too   |

The controller's own delays end no session. A new reign gives every session its full timeout. A stall of the controller
moves all deadlines by the stall. The caller takes in what its links have received before it asks what is due.

Pure: the caller passes the time, in seconds of one monotonic clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

TIMEOUT_SECONDS_MIN: Final = 2.0
"""The least session timeout of a cluster."""


def beat_seconds(timeout: float) -> float:
    """How often a broker gives a sign of life, and the controller looks at the deadlines."""
    return min(max(timeout / 6, 0.2), 1.0)


def silence_seconds(timeout: float) -> float:
    """How long one side waits for the other's next sign of life before it counts the link as lost."""
    return min(max(timeout / 3, 0.5), 3.0)


class Terms(NamedTuple):
    """What keeps a session alive."""

    link: int
    """The nonce of the broker's store. All links of that store have it, before and after a failover too."""
    timeout: float
    """In seconds."""


@dataclass(slots=True)
class _Lease:
    terms: Terms
    since: float
    """The last moment at which its process provably received everything. Only rises."""

    @property
    def end(self) -> float:
        return self.since + self.terms.timeout


class _Sent(NamedTuple):
    token: int
    at: float


class Deadlines:
    """The controller's count: which sessions have ended. It holds every session of other processes."""

    def __init__(self, beat: float) -> None:
        self._beat = beat
        self._leases: dict[int, _Lease] = {}
        self._sent: dict[int, _Sent] = {}
        """The newest token of each link that was not echoed yet."""
        self._last_token = 0
        self._looked: float | None = None
        """When `due` was last called."""

    def opened(self, session: int, terms: Terms, now: float) -> None:
        """A session was opened."""
        self._leases[session] = _Lease(terms, now)

    def ended(self, session: int) -> None:
        """A session's end is on record."""
        self._leases.pop(session, None)

    def on_record(self, sessions: Mapping[int, Terms], now: float) -> None:
        """Compare with the sessions on record: those that are not known yet were opened, and missing ones ended."""
        for session in self._leases.keys() - sessions.keys():
            self.ended(session)
        for session in sessions.keys() - self._leases.keys():
            self.opened(session, sessions[session], now)

    def link_lost(self, link: int) -> None:
        """The connection of a link has ended. Its sessions live on until their deadlines, or the next link's echoes."""
        self._sent.pop(link, None)

    def reign_begun(self, sessions: Mapping[int, Terms], now: float) -> None:
        """Begin with the sessions on record. Each has its full timeout, because nobody could renew it meanwhile."""
        self._leases = {session: _Lease(terms, now) for session, terms in sessions.items()}
        self._sent = {}
        self._looked = now

    def token_sent(self, link: int, now: float) -> int:
        """The token that goes out behind everything pushed so far. It takes the place of an earlier one."""
        self._last_token += 1
        self._sent[link] = _Sent(self._last_token, now)
        return self._last_token

    def echoed(self, link: int, token: int) -> bool:
        """A sign of life arrived. Returns whether it echoes the newest token; then the next token is due.

        An older echo renews nothing, and gets no token. So a link has one token under way, however often it calls.
        """
        sent = self._sent.get(link)
        if sent is None or sent.token != token:
            return False
        del self._sent[link]
        for lease in self._leases.values():
            if lease.terms.link == link:
                lease.since = max(lease.since, sent.at)
        return True

    def due(self, now: float) -> list[int]:
        """The sessions to end now, in the order of their ids. They stay due until `ended`.

        Called once every beat. If this process was stopped or busy in between, nobody could be heard, so every deadline
        moves by that time.
        """
        if self._looked is not None:
            stall = now - self._looked - self._beat
            if stall > self._beat:
                for lease in self._leases.values():
                    lease.since += stall
        self._looked = now
        return sorted(session for session, lease in self._leases.items() if lease.end <= now)


class LinkProof:
    """The follower's count: until when it provably received everything, and when its controller counts as silent.

    A session's own deadline is its timeout after `proven`, or after the moment when its opening was first sent if that
    is later. But it ends with the session of the link, whose timeout counts from `proven` or `begun`. So a session that
    is opened between two tokens lives no longer than older ones. The caller asks by HELLO on each new link. Once that
    is answered it asks by ALIVE: at once, so that a new link soon renews what an outage has left, and then a beat after
    each answer.
    """

    def __init__(self) -> None:
        self.proven = -inf
        """The controller has heard that this process received everything until this moment, or a later one."""
        self.begun = -inf
        """The present session of the link was opened at this moment or later."""
        self._first_hello: float | None = None
        """When the first HELLO since the last WELCOME was sent."""
        self._asked = -inf
        """When the newest question was sent."""
        self._asked_before = -inf
        """When the question before it was sent, on the same link."""
        self._is_answered = True

    def hello_sent(self, now: float) -> None:
        """A new link begins. What the earlier one proved stays true."""
        if self._first_hello is None:
            self._first_hello = now
        self._asked = now
        self._asked_before = -inf
        self._is_answered = False

    def welcomed(self, *, is_new_session: bool) -> None:
        """The link has this session. A HELLO whose WELCOME was lost may have opened it."""
        if is_new_session and self._first_hello is not None:
            self.begun = self._first_hello
        self._first_hello = None

    def alive_sent(self, now: float) -> None:
        """The newest token was echoed."""
        assert self._is_answered, "one question at a time"
        self._asked_before = self._asked
        self._asked = now
        self._is_answered = False

    def token_received(self) -> None:
        """The newest question was answered.

        So the controller has the echo that the question carried. That token was sent after the question before.
        """
        self._is_answered = True
        self.proven = max(self.proven, self._asked_before)

    def reigned(self, now: float) -> None:
        """This process was the controller at `now`. So a successor takes over later, and gives a full timeout."""
        self._is_answered = True
        self.proven = max(self.proven, now)

    def silent_at(self, silence: float) -> float:
        """When the controller counts as silent unless it answers; infinity if it has answered everything."""
        return inf if self._is_answered else self._asked + silence
