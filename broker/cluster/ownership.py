"""Claims: who owns a segment or a persistent topic, and who controls a scalable one.

A claim is an ephemeral record; losing the session releases it. Its version is the owner's proof: every metadata write
that an owner makes is conditioned on it, so an owner that was replaced without noticing writes nothing (D4).
"""

from typing import Final
from urllib.parse import quote, unquote

import orjson

from broker.errors import BrokerError
from storage.metadata.store import ABSENT, Check, Conflict, Delete, MetadataStore, Session

KEY_PREFIX: Final = "/owners/"


class OwnedElsewhere(BrokerError):
    """Another broker owns the topic, or controls it; the message names it."""

    retriable = True


def claim_key(name: str) -> str:
    """Where the claim of what has this name stands; of a beginning of a name, what all of these keys begin with."""
    return KEY_PREFIX + quote(name, safe="")


def claimed_name(key: str) -> str:
    """What is claimed by the record under this key."""
    return unquote(key.removeprefix(KEY_PREFIX))


class Claims:
    """The claims that one broker holds through its metadata session.

    A claim of an earlier run of the same broker is taken over and not waited for: this run is registered under the
    broker's id (`membership`) and has fenced its journal, so that one is gone, although its session in the metadata
    store may not have ended yet. What it may still write is conditioned on the claim's version, which changes. So is a
    claim that this run has given up while the metadata store did not answer.
    """

    def __init__(self, metadata: MetadataStore, session: Session, *, broker_id: str, service_url: str) -> None:
        self._metadata = metadata
        self._session = session
        self.broker_id = broker_id
        self._held: set[str] = set()
        """Keys of the claims that somebody in this process takes, or has taken and not given up."""
        self._value = orjson.dumps({"broker": broker_id, "service_url": service_url})

    async def claim(self, topic: str) -> Check:
        """Become the owner of `topic`; durable on return. The condition to put on every write of the owner.

        Raises:
            OwnedElsewhere: another broker holds the claim, or somebody else in this one.
        """
        key = claim_key(topic)
        if key in self._held:
            raise OwnedElsewhere(f"{topic} is owned by {self.broker_id}")
        self._held.add(key)
        try:
            return await self._take(topic, key)
        except BaseException:
            self._held.discard(key)
            raise

    async def _take(self, topic: str, key: str) -> Check:
        expected = ABSENT
        while True:
            try:
                return Check(key, await self._metadata.put(key, self._value, expected=expected, session=self._session))
            except Conflict as conflict:
                held = await self._metadata.get(key)
                if held is None:
                    expected = ABSENT
                    continue
                claim = orjson.loads(held.value)
                owner = claim["broker"]
                if owner != self.broker_id:
                    where = claim.get("service_url", "an address that it does not say")
                    raise OwnedElsewhere(f"{topic} is owned by {owner} at {where}") from conflict
                expected = held.version

    async def wait_not_elsewhere(self, topic: str) -> None:
        """Return as soon as no other broker holds the claim of `topic`."""
        async with self._metadata.watch_key(claim_key(topic)) as watch:
            while (held := await watch.next()) is not None:
                if orjson.loads(held.value)["broker"] == self.broker_id:
                    return

    @property
    def has_ended(self) -> bool:
        """Whether every claim went with the session."""
        return self._session.has_ended

    def forget(self, claim: Check) -> None:
        """The claim is lost; it may be taken anew."""
        self._held.discard(claim.key)

    async def release(self, claim: Check) -> None:
        """Give the claim up; harmless if it was lost."""
        self.forget(claim)
        if self._session.has_ended:
            # It went with the session. The store may not answer for long yet.
            return
        try:
            await self._metadata.commit([Delete(claim.key, claim.expected)])
        except Conflict:
            # Whoever holds it now keeps it.
            return
