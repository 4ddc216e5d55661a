"""Tenants and namespaces: those that administrators created, and those that have topics.

    /namespaces/<tenant>                a tenant that an administrator created
    /namespaces/<tenant>/<namespace>    a namespace that an administrator created

Every legal name may be used without asking: clients create topics in any namespace, and a topic's namespace and tenant
exist with it. A record keeps them while they are empty. `public/default` is always there.
"""

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote, unquote

from broker.errors import NamespaceExists, NamespaceInUse, NamespaceNotFound
from broker.layouts.store import KEY_PREFIX as LAYOUTS
from broker.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, Domain, InvalidTopicName, TopicName
from broker.partitioned_topics import PARTITIONED_TOPICS
from broker.retention_policies import namespace_key
from storage.managed_ledger_record import MANAGED_LEDGERS
from storage.managed_ledger_record import record_key as ledgers_key
from storage.metadata.store import ABSENT, Conflict, Delete, MetadataStore, Put, starting_with

KEY_PREFIX: Final = "/namespaces/"

_PAGE: Final = 500
"""Records that are read at once."""
_VALUE: Final = b"{}"
_SCHEME: Final = f"{Domain.PERSISTENT}://"


class Namespaces:
    """The tenants and namespaces in the metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def tenants(self) -> list[str]:
        """Return the names of all tenants, in order."""
        found = {DEFAULT_TENANT}
        for prefix, separator in _roots():
            async for part in self._parts(prefix, separator):
                if _is_legal(part):
                    found.add(part)
        return sorted(found)

    async def of(self, tenant: str) -> list[str]:
        """Return the names of a tenant's namespaces, without the tenant, in order.

        Raises:
            NamespaceNotFound: there is no such tenant.
        """
        found = await self._found_of(tenant)
        if not found and not await self._is_recorded(tenant):
            raise NamespaceNotFound(f"Tenant {tenant} does not exist. Create it, or a topic of it.")
        return found

    async def _found_of(self, tenant: str) -> list[str]:
        found = {DEFAULT_NAMESPACE} if tenant == DEFAULT_TENANT else set()
        for prefix, separator in _roots():
            # In a topic's own keys, a tenant needs no quoting. The key of a ledger is a whole name, quoted.
            within = prefix + (tenant if separator == "/" else quote(tenant, safe="")) + separator
            async for part in self._parts(within, separator):
                if _is_legal(part):
                    found.add(part)
        return sorted(found)

    async def require(self, tenant: str, namespace: str) -> None:
        """Check that a namespace exists.

        Raises:
            NamespaceNotFound: it does not.
        """
        if (tenant, namespace) == (DEFAULT_TENANT, DEFAULT_NAMESPACE):
            return
        if not await self._is_recorded(f"{tenant}/{namespace}") and not await self._has_topics(tenant, namespace):
            raise NamespaceNotFound(f"Namespace {tenant}/{namespace} does not exist. Create it, or a topic in it.")

    async def create_tenant(self, tenant: str) -> None:
        """Create a tenant; durable on return.

        Raises:
            NamespaceExists: it exists.
        """
        if tenant in await self.tenants():
            raise NamespaceExists(f"Tenant {tenant} exists already.")
        await self._record(tenant, f"Tenant {tenant}")

    async def create(self, tenant: str, namespace: str) -> None:
        """Create a namespace; durable on return.

        Raises:
            NamespaceNotFound: there is no such tenant.
            NamespaceExists: it exists.
        """
        if namespace in await self.of(tenant):
            raise NamespaceExists(f"Namespace {tenant}/{namespace} exists already.")
        await self._record(f"{tenant}/{namespace}", f"Namespace {tenant}/{namespace}")

    async def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant without namespaces; durable on return.

        Raises:
            NamespaceNotFound, NamespaceInUse
        """
        namespaces = await self.of(tenant)
        if namespaces:
            raise NamespaceInUse(f"Tenant {tenant} has the namespace {namespaces[0]}. Delete its namespaces first.")
        await self._metadata.delete(KEY_PREFIX + tenant)

    async def delete(self, tenant: str, namespace: str) -> None:
        """Delete a namespace without topics, with its retention policy; durable on return.

        Raises:
            NamespaceNotFound, NamespaceInUse
        """
        await self.require(tenant, namespace)
        if (tenant, namespace) == (DEFAULT_TENANT, DEFAULT_NAMESPACE):
            raise NamespaceInUse(f"{tenant}/{namespace} is always there. Names without a namespace belong to it.")
        if await self._has_topics(tenant, namespace):
            raise NamespaceInUse(f"Namespace {tenant}/{namespace} has topics. Delete them first.")
        keys = (f"{KEY_PREFIX}{tenant}/{namespace}", namespace_key(tenant, namespace))
        await self._metadata.commit([Delete(key) for key in keys])

    async def _record(self, name: str, what: str) -> None:
        try:
            await self._metadata.commit([Put(KEY_PREFIX + name, _VALUE, ABSENT)])
        except Conflict:
            raise NamespaceExists(f"{what} exists already.") from None

    async def _is_recorded(self, name: str) -> bool:
        return await self._metadata.get(KEY_PREFIX + name) is not None

    async def _has_topics(self, tenant: str, namespace: str) -> bool:
        prefixes = (
            f"{LAYOUTS}{tenant}/{namespace}/",
            f"{PARTITIONED_TOPICS}{tenant}/{namespace}/",
            ledgers_key(f"{_SCHEME}{tenant}/{namespace}/"),
        )
        for prefix in prefixes:
            if await self._metadata.scan(*starting_with(prefix), limit=1):
                return True
        return False

    async def _parts(self, prefix: str, separator: str) -> AsyncIterator[str]:
        """Yield what stands between `prefix` and the next separator in keys. It reads one record for each of them."""
        start, end = starting_with(prefix)
        while records := await self._metadata.scan(start, end, limit=1):
            part = records[0].key.removeprefix(prefix).partition(separator)[0]
            yield unquote(part)
            # The next key that does not begin with this part and a separator. The record of a part alone comes first.
            after = starting_with(prefix + part + separator)[1]
            start = records[0].key + "\0" if records[0].key == prefix + part else after


async def regular_topics(metadata: MetadataStore, tenant: str, namespace: str) -> list[TopicName]:
    """Return the regular topics and partitions of a namespace that were made. Migrated topics are among them."""
    start, end = starting_with(ledgers_key(f"{_SCHEME}{tenant}/{namespace}/"))
    found = []
    while page := await metadata.scan(start, end, limit=_PAGE):
        found += [_name_in(record.key) for record in page]
        start = page[-1].key + "\0"
    return [name for name in found if name is not None]


def _name_in(key: str) -> TopicName | None:
    # A key that another program wrote may have any text here.
    try:
        return TopicName.parse(unquote(key.removeprefix(MANAGED_LEDGERS)))
    except InvalidTopicName:
        return None


def _roots() -> tuple[tuple[str, str], ...]:
    """Below which prefixes keys begin with a tenant and a namespace, and what parts these."""
    return (
        (KEY_PREFIX, "/"),
        (LAYOUTS, "/"),
        (PARTITIONED_TOPICS, "/"),
        (ledgers_key(_SCHEME), quote("/", safe="")),
    )


def _is_legal(name: str) -> bool:
    # A key that another program wrote may have any text here.
    try:
        TopicName(Domain.TOPIC, name, name, "any")
    except InvalidTopicName:
        return False
    return True
