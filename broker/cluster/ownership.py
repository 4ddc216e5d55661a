"""Claims: who owns a segment or a persistent topic.

A claim is an ephemeral record; losing the session releases it. Its version is the owner's proof: every metadata write
that an owner makes is conditioned on it, so an owner that was replaced without noticing writes nothing (D4).
"""

from typing import Final
from urllib.parse import quote

import orjson

from storage.metadata.store import ABSENT, Check, Conflict, Delete, MetadataStore, Session

KEY_PREFIX: Final = "/owners/"


class OwnedElsewhere(Exception):
    """Another broker owns the topic; the message names it."""


class Claims:
    """The claims that one broker holds through its metadata session."""

    def __init__(self, metadata: MetadataStore, session: Session, *, broker_id: str, service_url: str) -> None:
        self._metadata = metadata
        self._session = session
        self._value = orjson.dumps({"broker": broker_id, "service_url": service_url})

    async def claim(self, topic: str) -> Check:
        """Become the owner of `topic`; durable on return. The condition to put on every write of the owner.

        Raises:
            OwnedElsewhere: another session holds the claim.
        """
        key = KEY_PREFIX + quote(topic, safe="")
        try:
            version = await self._metadata.put(key, self._value, expected=ABSENT, session=self._session)
        except Conflict as conflict:
            owner = await self._metadata.get(key)
            name = "a broker that just left" if owner is None else orjson.loads(owner.value)["broker"]
            raise OwnedElsewhere(f"{topic} is owned by {name}") from conflict
        return Check(key, version)

    async def release(self, claim: Check) -> None:
        """Give the claim up; harmless if it was lost."""
        try:
            await self._metadata.commit([Delete(claim.key, claim.expected)])
        except Conflict:
            # Whoever holds it now keeps it.
            return
