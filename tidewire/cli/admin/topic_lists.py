"""The topics of a namespace, of both kinds."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from tidewire.cli.asking import Brokers
from tidewire.cli.endings import UsageError

_NAMESPACE_PARTS: Final = len(("tenant", "namespace"))


def tenant_path(tenant: str) -> str:
    """Return a tenant's name percent-encoded.

    Raises:
        UsageError: it is no such name.
    """
    if not tenant or "/" in tenant:
        raise UsageError(f"{tenant!r} is not a tenant. Give its name alone.")
    return quote(tenant, safe="")


def namespace_path(namespace: str) -> str:
    """Return TENANT/NAMESPACE percent-encoded.

    Raises:
        UsageError: it has another form.
    """
    parts = namespace.split("/")
    if len(parts) != _NAMESPACE_PARTS or not all(parts):
        raise UsageError(f"{namespace!r} is not a namespace. Give it as TENANT/NAMESPACE.")
    return "/".join(quote(part, safe="") for part in parts)


def topics_in(brokers: Brokers, namespace: str, properties: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the name and the kind of each topic, sorted by kind and name. A partitioned topic is one topic.

    The kinds are `scalable`, `regular` and `partitioned`. With `properties`, only scalable topics that have all of
    them are returned, because regular topics have none.

    Raises:
        UsageError: `namespace` is not TENANT/NAMESPACE.
        NotAnswered: no broker answered.
        NotAccepted: the broker refused.
    """
    path = namespace_path(namespace)
    filters = [("property", f"{key}={value}") for key, value in properties.items()]
    kinds = dict.fromkeys(brokers.ask("GET", f"/admin/v2/scalable/{path}", filters), "scalable")
    if not properties:
        partitioned = brokers.ask("GET", f"/admin/v2/persistent/{path}/partitioned")
        kinds |= dict.fromkeys(brokers.ask("GET", f"/admin/v2/persistent/{path}"), "regular")
        for name in partitioned:
            kinds[name] = "partitioned"
        known = set(partitioned)
        kinds = {name: kind for name, kind in kinds.items() if name.rpartition("-partition-")[0] not in known}
    return [{"topic": name, "kind": kind} for name, kind in sorted(kinds.items(), key=lambda one: (one[1], one[0]))]
