"""Keeps web pages from administering the broker through their visitors' browsers.

A broker on a laptop trusts everything that reaches its port, and a browser sends requests for any page it shows. Two
headers distinguish such a page from a program:

- A page may POST a form to another site. The browser then sends the page's site as `Origin`. The request is refused
  unless that site is the broker itself. Programs other than browsers send no `Origin`.
- A page may make its own host name resolve to the broker's address (DNS rebinding). The page then has the same origin.
  But the browser sends that name as `Host`, and a name that is not the broker's is refused.
"""

import ipaddress
import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.addresses import Address
from broker.http.refusals import refusal

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST: Final = re.compile(r"(?:\[(?P<ip>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)


class KnownHostsOnly:
    """ASGI middleware: answers 403 to requests whose `Host` is not a name of the broker."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        """Also accept `hosts`: names and IP addresses besides loopback and the address that the client reached."""
        self._app = app
        self._hosts = frozenset(_plain(host) for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            given = Headers(scope=scope).get("host")
            # A request without Host, as in HTTP/1.0, does not come from a browser.
            if given is not None and not self._is_known(given, scope["server"][0]):
                reason = (
                    f"{given[:100]!r} is not a name of this broker. Use its address, or allow the name with "
                    "--http-hosts."
                )
                await refusal(403, reason)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_known(self, given: str, reached: str) -> bool:
        match = _HOST.fullmatch(given.lower())
        if match is None:
            return False
        host = _plain(match["ip"] or match["name"])
        return host in self._hosts or host == _plain(reached) or Address(host, 0).is_loopback


class SameOriginOnly:
    """ASGI middleware: answers 403 to changes that another site's page requests through a browser."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and scope["method"] not in _HARMLESS:
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and not _is_same(origin, headers.get("host", "")):
                reason = f"A web page of {origin} may not administer this broker. Send the request without Origin."
                response = refusal(403, reason)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_same(origin: str, host: str) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _plain(host: str) -> str:
    """Normalise a host: lower case, no dot at the end, mapped IPv4 addresses as IPv4."""
    name = host.lower().removesuffix(".")
    try:
        ip = ipaddress.ip_address(name)
    except ValueError:
        return name
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(ip if mapped is None else mapped)
