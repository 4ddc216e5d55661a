"""Takes the claims of topics for this broker, and gives them up, also if the metadata store does not answer.

    the answer to a claim is lost         this broker may have it, so it is looked for later, and released
    a release fails, or takes too long    the topic can be loaded here again; later attempts go on meanwhile
    a ledger of the topic stays open      the claim is kept, because no other broker could take the ledger over
    its record changes meanwhile          the same: a change without an answer may have listed one more ledger

Whoever wants a topic that a later attempt releases waits until that is done. An attempt waits until nobody uses the
topic here.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import structlog
import trio

from broker.cluster.ownership import Claims
from broker.errors import UNEXPECTED
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from broker.topic_services import TopicServices
from storage.errors import ExpectedError
from storage.managed_ledger_opening import let_go_of_managed_ledger
from storage.metadata.store import Check

RELEASE_SECONDS_MAX: Final = 5
"""How long the release of a topic may take. After that, this broker keeps it until the next request for it, or until a
later attempt succeeds, or until the session ends."""

log = structlog.get_logger(__name__)

Reserve = Callable[[TopicName], AbstractAsyncContextManager[None]]
"""Waits until nobody uses a topic here, and lets all who want it wait during the block."""


class TopicClaims:
    """See the module's docstring."""

    def __init__(self, claims: Claims, services: TopicServices, reserve: Reserve, nursery: trio.Nursery) -> None:
        """Set up.

        Args:
            claims: the broker's claims.
            services: the stores in which ledgers are closed before a claim is given up.
            reserve: keeps a topic from being loaded while a later attempt releases it.
            nursery: runs the later attempts.
        """
        self._claims = claims
        self._services = services
        self._reserve = reserve
        self._nursery = nursery
        self._perhaps: set[TopicName] = set()
        """Topics with a claim whose answer was lost, until a task has looked after it."""
        self._is_closing = False

    def close(self) -> None:
        """Give up no claim any more. The session's end releases them all."""
        self._is_closing = True

    async def wait_not_elsewhere(self, name: TopicName) -> None:
        """Wait until no other broker owns the topic."""
        await self._claims.wait_not_elsewhere(str(name))

    async def take(self, name: TopicName, *, is_brief: bool) -> Check:
        """See `Claims.claim`."""
        try:
            return await self._claims.claim(str(name), is_brief=is_brief)
        except ExpectedError as error:
            if not error.definite and name not in self._perhaps:
                # This broker may have the claim. Others would wait for what the owner does.
                self._perhaps.add(name)
                self._nursery.start_soon(self._leave_perhaps, name)
            raise

    async def _leave_perhaps(self, name: TopicName) -> None:
        try:
            await self._leave_later(name, None)
        finally:
            self._perhaps.discard(name)

    async def leave(self, name: TopicName, claim: Check, *, is_ending: bool) -> None:
        """Give a claim up. If that fails, or takes too long, try again later.

        If the broker `is_ending`, what the topic has open is recovered later, and nothing is tried again.
        """
        if self._is_closing:
            return
        is_released = False
        try:
            with trio.move_on_after(RELEASE_SECONDS_MAX, shield=True):
                is_released = await self._give_up(name, claim, lets_go=not is_ending)
        finally:
            if not is_released and not is_ending:
                self._nursery.start_soon(self._leave_later, name, claim)

    async def _leave_later(self, name: TopicName, claim: Check | None) -> None:
        """Release a claim that this broker could not release at once. Changes of the topic's layout wait for it.

        Without a `claim` it is any claim of this broker, because the answer was lost when it was made.
        """
        is_released = False
        while not is_released:
            # What failed is the store or the disk, whose recovery is no event.
            await trio.sleep(RETRY_SECONDS)
            async with self._reserve(name):
                if self._is_closing or self._claims.has_ended:
                    return
                with trio.move_on_after(RELEASE_SECONDS_MAX):
                    is_released = await self._leave_now(name, claim)

    async def _leave_now(self, name: TopicName, claim: Check | None) -> bool:
        """Release a claim, as `_leave_later` says. Return whether nothing is left to release."""
        try:
            held = await self._claims.held(str(name))
            # If a later request has renewed the claim, its end releases it.
            return held is None or claim not in (None, held) or await self._give_up(name, held, lets_go=True)
        except ExpectedError as error:
            log.warning("a topic's claim cannot be released yet", topic=str(name), reason=str(error))
            return False

    async def _give_up(self, name: TopicName, claim: Check, *, lets_go: bool) -> bool:
        """Release the claim, unless a ledger of the topic stays open here: no other broker could take that over.

        Return whether it was released.
        """
        # In any case the topic can be loaded here again.
        self._claims.forget(claim)
        under: Check | None = None
        if lets_go and not self._claims.has_ended:
            services = self._services
            try:
                under = await let_go_of_managed_ledger(
                    str(name),
                    metadata=services.metadata,
                    ledgers=services.ledgers,
                    claim=claim,
                )
            except (ExpectedError, *UNEXPECTED) as error:
                # Also if its files cannot be read. That may end no other topic.
                reason = str(error) or repr(error)
                log.warning("this broker keeps a topic that it cannot close", topic=str(name), reason=reason)
                return False
            if under is None:
                return False
        return await self._claims.release(claim, under)
