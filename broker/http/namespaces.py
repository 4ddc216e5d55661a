"""Tenants and namespaces over HTTP, in Pulsar's format: /admin/v2/tenants and /admin/v2/namespaces.

What a request would set and this broker has not is refused by its name, so that nobody relies on it. Clients may use
any namespace, whether it was created or not (`broker.namespaces`).
"""

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.errors import NotSupported
from broker.http.brokers import CLUSTER
from broker.http.parameters import json_map_of, namespace_of, switch_of
from broker.http.refusals import done, json_response
from broker.http.resources import Call, Parameter
from broker.namespaces import Namespaces
from broker.retention import retention_of
from broker.retention_policies import RetentionPolicies, namespace_key

_TENANTS: Final = "/admin/v2/tenants"
_NAMESPACES: Final = "/admin/v2/namespaces"
_UNSET: Final = (None, False, "", "None", "UNDEFINED", -1)
"""What Pulsar's clients send for a policy that is not set."""
_BUNDLES: Final = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}


def calls(namespaces: Namespaces, retention: RetentionPolicies) -> list[Call]:
    """The calls."""
    admin = _NamespaceAdmin(namespaces, retention)
    tenant, namespace = _TENANTS + "/{tenant}", _NAMESPACES + "/{tenant}/{namespace}"
    info = '{"adminRoles": [], "allowedClusters": ["standalone"]}; other values are refused'
    force = Parameter("force", "Refused, unless it is false.", "boolean")
    return [
        Call("GET", _TENANTS, admin.tenants, "List the tenants.", "A list of names."),
        Call("GET", tenant, admin.tenant, "Show a tenant.", info, errors=(404,)),
        Call("PUT", tenant, admin.create_tenant, "Create a tenant.", body=info, errors=(400, 409, 501)),
        Call("POST", tenant, admin.update_tenant, "Check a tenant's settings.", body=info, errors=(400, 404, 501)),
        Call(
            *("DELETE", tenant, admin.delete_tenant),
            "Delete a tenant without namespaces.",
            parameters=(force,),
            errors=(404, 409, 501),
        ),
        Call(
            *("GET", _NAMESPACES + "/{tenant}", admin.namespaces),
            "List a tenant's namespaces.",
            "A list of names, as tenant/namespace.",
            errors=(404,),
        ),
        Call("GET", namespace, admin.policies, "Show a namespace's policies.", "The policies.", errors=(404,)),
        Call(
            *("PUT", namespace, admin.create),
            "Create a namespace.",
            body="Policies; all but retention_policies and bundles must be unset",
            errors=(400, 404, 409, 501),
        ),
        Call(
            *("DELETE", namespace, admin.delete),
            "Delete a namespace without topics.",
            parameters=(force,),
            errors=(404, 409, 501),
        ),
    ]


class _NamespaceAdmin:
    def __init__(self, namespaces: Namespaces, retention: RetentionPolicies) -> None:
        self._namespaces = namespaces
        self._retention = retention

    async def tenants(self, _request: Request) -> Response:
        return json_response(await self._namespaces.tenants())

    async def tenant(self, request: Request) -> Response:
        tenant, _ = namespace_of(request)
        await self._namespaces.of(tenant)
        return json_response({"adminRoles": [], "allowedClusters": [CLUSTER]})

    async def create_tenant(self, request: Request) -> Response:
        tenant, _ = namespace_of(request)
        _check_tenant(await json_map_of(request) or {})
        await self._namespaces.create_tenant(tenant)
        return done()

    async def update_tenant(self, request: Request) -> Response:
        tenant, _ = namespace_of(request)
        _check_tenant(await json_map_of(request) or {})
        await self._namespaces.of(tenant)
        return done()

    async def delete_tenant(self, request: Request) -> Response:
        tenant, _ = namespace_of(request)
        _refuse_force(request, "namespaces")
        await self._namespaces.delete_tenant(tenant)
        return done()

    async def namespaces(self, request: Request) -> Response:
        tenant, _ = namespace_of(request)
        return json_response([f"{tenant}/{name}" for name in await self._namespaces.of(tenant)])

    async def policies(self, request: Request) -> Response:
        tenant, namespace = namespace_of(request)
        await self._namespaces.require(tenant, namespace)
        retention = await self._retention.stored(namespace_key(tenant, namespace))
        return json_response(
            {
                "replication_clusters": [CLUSTER],
                "bundles": _BUNDLES,
                "retention_policies": None if retention is None else retention.to_json(),
                "deleted": False,
            }
        )

    async def create(self, request: Request) -> Response:
        tenant, namespace = namespace_of(request)
        policies = await json_map_of(request) or {}
        _check_policies(policies)
        given = policies.get("retention_policies")
        retention = None if given is None else retention_of(given if isinstance(given, Mapping) else {})
        await self._namespaces.create(tenant, namespace)
        if retention is not None:
            await self._retention.store(namespace_key(tenant, namespace), retention)
        return done()

    async def delete(self, request: Request) -> Response:
        _refuse_force(request, "topics")
        await self._namespaces.delete(*namespace_of(request))
        return done()


def _check_tenant(info: Mapping[str, object]) -> None:
    if _is_set(info.get("adminRoles")):
        raise NotSupported("This broker does not check who a client is, so a tenant has no adminRoles. Leave them out.")
    _check_clusters(info.get("allowedClusters"))
    others = sorted(
        name for name, value in info.items() if name not in {"adminRoles", "allowedClusters"} and _is_set(value)
    )
    if others:
        raise NotSupported(f"A tenant has no {others[0]} here. Leave it out.")


def _check_policies(policies: Mapping[str, object]) -> None:
    _check_clusters(policies.get("replication_clusters"))
    served = {"bundles", "boundaries", "numBundles", "replication_clusters", "retention_policies"}
    others = sorted(name for name, value in policies.items() if name not in served and _is_set(value))
    if others:
        raise NotSupported(f"A namespace has no policy {others[0]} here. Leave it out.")


def _check_clusters(clusters: object) -> None:
    given = clusters if isinstance(clusters, list) else []
    others = [cluster for cluster in given if cluster != CLUSTER]
    if others:
        raise HTTPException(
            412, f"There is no cluster {str(others[0])[:50]}. The only one is {CLUSTER}, because nothing is replicated."
        )


def _refuse_force(request: Request, what: str) -> None:
    if switch_of(request, "force"):
        raise NotSupported(f"This broker does not delete all {what} at once. Delete them first, and then this.")


def _is_set(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_set, value.values()))
    if isinstance(value, list):
        return bool(value)
    return not any(value is unset or (value == unset and value is not True) for unset in _UNSET)
