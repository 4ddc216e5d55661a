"""Retries: what is sent again when etcd does not answer, how often and for how long.

A read may be sent any number of times, and so may a write that carries its own proof of having been made (requests.py).
They are sent until an answer comes, or until ANSWER_SECONDS_MAX have passed since the call began. Each attempt waits
for a connection for up to ATTEMPT_SECONDS_MAX. After a failed attempt, the next server of the list is asked, after a
delay from a fixed table. So a restarting server costs only a wait for its connection, and a server that answers "not
now" is asked about once a second. There is no jitter, because a process has few calls in flight and etcd serves few
processes.
"""

from collections.abc import Iterator
from typing import Final, TypeVar

import trio
from google.protobuf.message import Message

from storage.metadata.etcd.rpc import Method, Rpc, RpcError
from storage.metadata.store import StoreUnavailable

ANSWER_SECONDS_MAX: Final = 20.0
"""How long a call of the store waits for etcd before it raises StoreUnavailable."""

ATTEMPT_SECONDS_MAX: Final = 5.0
"""How long one request may take, including the connection."""

RETRY_DELAYS: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds before each further attempt. The last one repeats."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Attempts:
    """The attempts of one call: `await attempts.after(error)` returns when the next one may be made."""

    def __init__(self, rpc: Rpc, until: float, seconds_max: float) -> None:
        self._rpc = rpc
        self._until = until
        self._seconds_max = seconds_max
        self._delays: Iterator[float] = iter(RETRY_DELAYS)

    @property
    def seconds(self) -> float:
        """How long the next attempt may take."""
        return max(0.001, min(ATTEMPT_SECONDS_MAX, self._until - trio.current_time()))

    async def after(self, error: RpcError) -> None:
        """Wait before the next attempt.

        Raises:
            StoreUnavailable: there is no next attempt, because the server refused or the time is over.
        """
        delay = next(self._delays, RETRY_DELAYS[-1])
        if error.is_refusal:
            raise StoreUnavailable(f"etcd refuses: {error}") from error
        if trio.current_time() + delay >= self._until:
            servers = ", ".join(self._rpc.endpoints)
            raise StoreUnavailable(f"etcd at {servers} gave no answer for {self._seconds_max:g} s: {error}") from error
        self._rpc.turn(error.server)
        await trio.sleep(delay)


class Retry:
    """Makes calls that may be repeated."""

    def __init__(self, rpc: Rpc, seconds_max: float = ANSWER_SECONDS_MAX) -> None:
        self._rpc = rpc
        self.seconds_max = seconds_max

    def attempts(self, *, until: float | None = None) -> Attempts:
        """For a call that decides itself what to repeat.

        `until` is a time on Trio's clock, for a call that began earlier.
        """
        return Attempts(self._rpc, trio.current_time() + self.seconds_max if until is None else until, self.seconds_max)

    async def repeat(self, method: Method[Request, Response], request: Request) -> Response:
        """One call, repeated until it is answered.

        Raises:
            StoreUnavailable: it was not answered, or the server refused it.
        """
        attempts = self.attempts()
        while True:
            try:
                return await self._rpc.call(method, request, seconds_max=attempts.seconds)
            except RpcError as error:
                await attempts.after(error)

    async def repeat_unless_compacted(self, method: Method[Request, Response], request: Request) -> Response | None:
        """As `repeat`; None if the request names a revision that etcd has forgotten."""
        attempts = self.attempts()
        while True:
            try:
                return await self._rpc.call(method, request, seconds_max=attempts.seconds)
            except RpcError as error:
                if error.is_compacted:
                    return None
                await attempts.after(error)
