"""The broker describes what it serves: `/openapi.json` for programs, `/docs` for people. Both come from the calls."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from broker.http.openapi import described, tag_of
from broker.http.refusals import json_response
from broker.http.resources import HTML, Call, resources

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h2 { margin-top: 2.5rem; }
details { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); padding: .4rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace; }
dt { font-weight: 600; margin-top: .5rem; }
"""


def routes(calls: Iterable[Call], *, version: str) -> list[BaseRoute]:
    """The routes of all calls, and of their description."""
    given = list(calls)

    async def document(_request: Request) -> Response:
        return json_response(described(served, version=version))

    async def page(_request: Request) -> Response:
        return HTMLResponse(_page(served, version))

    served = [
        Call("GET", "/openapi.json", document, "Describe every call, in OpenAPI 3.1.", "The description."),
        Call("GET", "/docs", page, "Describe every call, for people.", "A page.", media_type=HTML),
        *given,
    ]
    return resources(served)


def _page(calls: Sequence[Call], version: str) -> str:
    served = sorted((call for call in calls if call.is_served), key=lambda call: tag_of(call.path))
    sections = "".join(
        f"<h2>{escape(tag)}</h2>{''.join(map(_call, group))}"
        for tag, group in groupby(served, key=lambda call: tag_of(call.path))
    )
    others = "".join(
        f"<li><code>{call.method} {escape(call.path)}</code>: {escape(call.summary)}</li>"
        for call in calls
        if not call.is_served
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Tidewire {escape(version)}: HTTP</title><style>{_STYLE}</style></head><body>"
        f"<h1>Tidewire {escape(version)}: HTTP</h1>"
        '<p>Programs read <a href="/openapi.json"><code>/openapi.json</code></a>. Paths that Pulsar has mean what they '
        'mean there. A refusal is <code>{"reason": "..."}</code>.</p>'
        f"{sections}<h2>Not served</h2><p>Pulsar has these calls. Here they answer 501.</p><ul>{others}</ul>"
        "</body></html>"
    )


def _call(call: Call) -> str:
    facts = [
        *(
            (parameter.name, parameter.meaning + (" Required." if parameter.is_required else ""))
            for parameter in call.parameters
        ),
        *([("Body", call.body)] if call.body else []),
        ("Answer", call.answer or "204, without a body."),
        *([("Refusals", ", ".join(map(str, call.errors)))] if call.errors else []),
    ]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(meaning)}</dd>" for name, meaning in facts)
    return (
        f"<details><summary><code>{call.method} {escape(call.path)}</code> {escape(call.summary)}</summary>"
        f"<dl>{listed}</dl></details>"
    )
