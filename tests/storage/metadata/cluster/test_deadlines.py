"""When sessions end, at the controller and in the process that holds them."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.cluster.deadlines import Deadlines, LinkProof, Terms, beat_seconds, silence_seconds

TIMEOUT = 6.0
BEAT = beat_seconds(TIMEOUT)
NONCE = 99


def _opened(*sessions: int, link: int = NONCE) -> Deadlines:
    deadlines = Deadlines(BEAT)
    deadlines.reign_begun({}, 0)
    for session in sessions:
        deadlines.opened(session, Terms(link, TIMEOUT), 0)
    return deadlines


def _due(deadlines: Deadlines, begin: float, until: float) -> list[int]:
    """What is due at `until`, for a caller that looks every beat."""
    now = begin
    while now + BEAT < until:
        now += BEAT
        deadlines.due(now)
    return deadlines.due(until)


@pytest.mark.parametrize(("timeout", "beat", "silence"), [(0.5, 0.2, 0.5), (2, 1 / 3, 2 / 3), (10, 1, 3), (60, 1, 3)])
def test_beats_and_silence_follow_the_timeout(timeout: float, beat: float, silence: float) -> None:
    assert beat_seconds(timeout) == pytest.approx(beat)
    assert silence_seconds(timeout) == pytest.approx(silence)


def test_a_session_that_nobody_renews_is_due_until_its_end_is_on_record() -> None:
    """M18: a refused attempt to end it is made again."""
    deadlines = _opened(5, 3)
    assert _due(deadlines, 0, TIMEOUT - 0.1) == []
    assert deadlines.due(TIMEOUT) == [3, 5]
    assert deadlines.due(TIMEOUT + BEAT) == [3, 5]
    deadlines.ended(3)
    deadlines.ended(3)
    assert deadlines.due(TIMEOUT + BEAT) == [5]


def test_an_echo_renews_all_sessions_of_the_link_to_when_its_token_was_sent() -> None:
    deadlines = _opened(3, 5)
    deadlines.opened(7, Terms(NONCE + 1, TIMEOUT), 0)
    token = deadlines.token_sent(NONCE, 1)
    assert _due(deadlines, 0, 4) == []
    assert deadlines.echoed(NONCE, token)
    assert _due(deadlines, 4, TIMEOUT + 0.9) == [7]
    assert _due(deadlines, TIMEOUT + 0.9, TIMEOUT + 1) == [3, 5, 7]


def test_a_sign_of_life_without_the_newest_token_renews_nothing() -> None:
    """C13: neither an echo of an earlier token, nor a second echo, nor another link's token."""
    deadlines = _opened(3)
    first = deadlines.token_sent(NONCE, 1)
    second = deadlines.token_sent(NONCE, 2)
    other = deadlines.token_sent(NONCE + 1, 2)
    assert not deadlines.echoed(NONCE, first)
    assert not deadlines.echoed(NONCE, other)
    assert not deadlines.echoed(NONCE, 0)
    assert _due(deadlines, 0, TIMEOUT) == [3]
    assert deadlines.echoed(NONCE, second)
    assert not deadlines.echoed(NONCE, second)


def test_an_ended_connection_renews_nothing_and_leaves_nothing() -> None:
    """E16: a token under way is forgotten with its connection."""
    deadlines = _opened(3)
    token = deadlines.token_sent(NONCE, 1)
    deadlines.link_lost(NONCE)
    deadlines.link_lost(NONCE)
    assert not deadlines.echoed(NONCE, token)
    assert deadlines._sent == {}


def test_a_new_reign_gives_every_session_its_full_timeout() -> None:
    """C5: counted from when it serves, whatever was before."""
    deadlines = _opened(3)
    deadlines.reign_begun({3: Terms(NONCE, TIMEOUT), 8: Terms(1, 2.0)}, 100)
    assert _due(deadlines, 100, 101.9) == []
    assert _due(deadlines, 101.9, 102) == [8]
    assert _due(deadlines, 102, 100 + TIMEOUT) == [3, 8]


def test_a_stall_of_the_controller_ends_nobodys_session() -> None:
    """M18: nobody could be heard while it was stopped. Afterwards the silent ones still end."""
    deadlines = _opened(3)
    assert _due(deadlines, 0, 2) == []
    stall = 3_600.0
    assert deadlines.due(2 + BEAT + stall) == []
    assert _due(deadlines, 2 + BEAT + stall, TIMEOUT + stall - 0.1) == []
    assert deadlines.due(TIMEOUT + stall) == [3]


def test_a_late_look_is_no_stall() -> None:
    """C13: so a controller that is always a little late still ends silent sessions."""
    deadlines = _opened(3)
    now = 0.0
    while not deadlines.due(now):
        now += 1.9 * BEAT
        assert now < TIMEOUT + 2 * BEAT


def test_a_follower_asks_one_question_at_a_time() -> None:
    proof = LinkProof()
    proof.hello_sent(0)
    with pytest.raises(AssertionError, match="one question"):
        proof.alive_sent(1)


def test_an_unanswered_question_makes_the_controller_silent() -> None:
    proof = LinkProof()
    assert proof.silent_at(2) == inf
    proof.hello_sent(10)
    assert proof.silent_at(2) == 12
    proof.token_received()
    assert proof.silent_at(2) == inf
    proof.alive_sent(11)
    assert proof.silent_at(2) == 13


def test_a_follower_counts_from_the_question_before_the_last_answered_one() -> None:
    """C13: a new link proves nothing by itself, and takes no proof back."""
    proof = LinkProof()
    proof.hello_sent(10)
    proof.token_received()
    assert proof.proven == -inf
    proof.alive_sent(11)
    proof.token_received()
    assert proof.proven == 10
    proof.alive_sent(12)
    proof.token_received()
    assert proof.proven == 11
    proof.hello_sent(20)
    proof.token_received()
    assert proof.proven == 11
    proof.alive_sent(20)
    proof.token_received()
    assert proof.proven == 20


def test_an_echo_that_was_lost_with_its_link_proves_nothing() -> None:
    """C13: the first answer of the next link is no answer to it."""
    proof = LinkProof()
    proof.hello_sent(10)
    proof.token_received()
    proof.alive_sent(11)
    proof.hello_sent(14)
    proof.token_received()
    assert proof.proven == -inf


@dataclass
class Link:
    """A follower and its controller over a link that delays every frame, and may be cut in each direction.

    The two have clocks of their own. Pushes and signs of life share a direction, so they are delayed and cut together.
    """

    delays: list[float]
    to_controller_until: float
    to_follower_until: float
    clock_ahead: float
    """How far the controller's clock is ahead of the follower's."""
    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    proof: LinkProof = field(default_factory=LinkProof)
    ended_at: float | None = None
    """When the controller ended the session, by the follower's clock."""

    def __post_init__(self) -> None:
        self.deadlines = Deadlines(BEAT)
        self.deadlines.reign_begun({}, self.clock_ahead)
        self._order = count()
        self._arrived = {True: 0.0, False: 0.0}

    @property
    def own_deadline(self) -> float:
        return max(self.proof.proven, 0.0) + TIMEOUT

    def run(self, until: float) -> None:
        self.proof.hello_sent(0)
        self._send(self._welcome, to_controller=True)
        self._at(BEAT, self._look)
        while self.events and self.ended_at is None and self.events[0][0] <= until:
            self.now, _order, event = heapq.heappop(self.events)
            event()

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self._order), event))

    def _send(self, arrive: Callable[[], None], *, to_controller: bool) -> None:
        delay = self.delays[next(self._order) % len(self.delays)]
        arrival = max(self.now + delay, self._arrived[to_controller])
        self._arrived[to_controller] = arrival
        if arrival < (self.to_controller_until if to_controller else self.to_follower_until):
            self._at(arrival, arrive)

    def _welcome(self) -> None:
        self.deadlines.opened(1, Terms(NONCE, TIMEOUT), self.now + self.clock_ahead)
        self._send_token()

    def _send_token(self) -> None:
        token = self.deadlines.token_sent(NONCE, self.now + self.clock_ahead)
        self._send(lambda: self._take_token(token), to_controller=False)

    def _take_token(self, token: int) -> None:
        self.proof.token_received()
        # At once on a new link, then a beat after each answer.
        self._at(self.now + (0 if token == 1 else BEAT), lambda: self._ask(token))

    def _ask(self, token: int) -> None:
        self.proof.alive_sent(self.now)
        self._send(lambda: self._take_alive(token), to_controller=True)

    def _take_alive(self, token: int) -> None:
        if self.deadlines.echoed(NONCE, token):
            self._send_token()

    def _look(self) -> None:
        if self.deadlines.due(self.now + self.clock_ahead):
            self.ended_at = self.now
        self._at(self.now + BEAT, self._look)


CUTS = st.sampled_from([inf]) | st.floats(0.5, 30)
# Three round trips and two beats are shorter than the timeout.
DELAYS = st.lists(st.floats(0, (TIMEOUT - 2 * BEAT) / 6 - 0.05), min_size=1, max_size=20)


@given(delays=DELAYS, up=CUTS, down=CUTS, ahead=st.floats(-1e5, 1e5))
def test_a_process_counts_its_session_as_ended_before_its_controller_does(
    delays: list[float], up: float, down: float, ahead: float
) -> None:
    """C13, M18: whatever is cut, late, or wrong with the clocks. And what is cut in any direction does end."""
    link = Link(delays, up, down, ahead)
    link.run(60)
    cut = min(up, down)
    if cut == inf:
        assert link.ended_at is None
        assert link.own_deadline > link.now
    elif link.deadlines._leases:
        assert link.ended_at is not None
        assert link.own_deadline <= link.ended_at + 1e-6
        assert link.ended_at <= cut + TIMEOUT + 2 * BEAT


@pytest.mark.parametrize(
    ("up", "down", "lives"), [(inf, inf, True), (inf, 10, False), (10, inf, False), (10, 10, False)]
)
def test_the_table_of_cut_directions(up: float, down: float, lives: bool) -> None:
    """C13: a broker that is heard and gets no pushes loses its session."""
    link = Link([0.01], up, down, 0)
    link.run(60)
    assert (link.ended_at is None) is lives
    if not lives:
        assert link.proof.silent_at(silence_seconds(TIMEOUT)) < link.own_deadline <= (link.ended_at or 0)


def test_the_session_of_a_link_counts_from_the_first_hello_that_may_have_opened_it() -> None:
    """C13: a WELCOME that was lost leaves a session that is older than the link."""
    proof = LinkProof()
    proof.hello_sent(10)
    proof.hello_sent(12)
    proof.welcomed(is_new_session=True)
    assert proof.begun == 10
    proof.hello_sent(20)
    proof.welcomed(is_new_session=False)
    assert proof.begun == 10
    proof.hello_sent(30)
    proof.welcomed(is_new_session=True)
    assert proof.begun == 30
