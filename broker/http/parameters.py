"""Parses the paths, parameters and bodies of requests strictly, and refuses mistakes with a reason.

A route is chosen by the decoded path, so paths are also checked in the form in which they were sent.
"""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import unquote_plus, unquote_to_bytes

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from broker.errors import UnknownSegment
from broker.layouts.parts import SubscriptionKind
from broker.names import SEGMENT_ID_MAX, Domain, InvalidTopicName, SegmentDescriptor, TopicName, subscription_problem

BODY_BYTES_MAX: Final = 1024 * 1024
"""The largest request body that is read. A larger one is answered with 413."""


_TOPIC_PART: Final = 6
"""The index of the topic in `_parts`, below /admin/v2/persistent and /admin/v2/schemas."""


def check_path(request: Request) -> None:
    """Refuse a path whose decoded form, which selected the route, has another meaning than the form that was sent.

    Only names of subscriptions may contain a slash. Bytes that are not UTF-8 would all decode to the same replacement
    character.
    """
    path = request.url.path
    for number, part in enumerate(_parts(request)):
        try:
            text = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            raise InvalidTopicName(path, "a name must be encoded as UTF-8") from None
        if "/" in text and number != _subscription_part(request):
            raise InvalidTopicName(path, "a name must not contain /, encoded or not")


def topic_of(request: Request) -> TopicName:
    """Return the `topic://` name in the path."""
    check_path(request)
    params = request.path_params
    return TopicName(Domain.TOPIC, params["tenant"], params["namespace"], params["topic"])


def form_topic_of(request: Request) -> TopicName:
    """Return the name in the path, where Pulsar's clients write it as in a form: a `+` is a space, and `%2B` is a `+`.

    They do so for regular topics and for the schemas of all topics. The v5 client writes scalable topics otherwise,
    see `topic_of`. `%20` is a space in both.
    """
    check_path(request)
    params = request.path_params
    local = unquote_to_bytes(_parts(request)[_TOPIC_PART].replace(b"+", b" ")).decode()
    return TopicName(Domain.TOPIC, params["tenant"], params["namespace"], local)


def namespace_of(request: Request) -> tuple[str, str]:
    """Return the tenant and the namespace in the path."""
    check_path(request)
    params = request.path_params
    # Constructing the name of any topic checks both.
    name = TopicName(Domain.TOPIC, params["tenant"], params.get("namespace", "any"), "any")
    return name.tenant, name.namespace


def segment_of(request: Request) -> TopicName:
    """Return the `segment://` name in the path."""
    return topic_of(request).segment_name(SegmentDescriptor.parse(request.path_params["descriptor"]))


def subscription_of(request: Request) -> str:
    """Return the subscription in the path."""
    return _legal_subscription(_subscription_in(request))


def form_subscription_of(request: Request) -> str:
    """Return the subscription in the path, where Pulsar's clients write it as in a form, and then percent-encode that.

    So `a/b` comes as `a%252Fb`, and a space as `+`. A name of letters, digits, `.`, `-` and `_` stands for itself.
    """
    written = _subscription_in(request)
    try:
        return _legal_subscription(unquote_plus(written, errors="strict"))
    except UnicodeDecodeError:
        raise HTTPException(412, f"{written[:50]!r} is not the encoded name of a subscription in UTF-8.") from None


def _subscription_in(request: Request) -> str:
    check_path(request)
    part = _subscription_part(request)
    assert part is not None, "the path has no subscription"
    return unquote_to_bytes(_parts(request)[part]).decode()


def _legal_subscription(name: str) -> str:
    problem = subscription_problem(name)
    if problem is not None:
        raise HTTPException(412, f"{name[:50]!r} is not a valid subscription name: {problem}.")
    return name


def _parts(request: Request) -> list[bytes]:
    """Split the path at its slashes, in the form in which it was sent. Routing splits it likewise (`connection.py`)."""
    raw_path: bytes = request.scope["raw_path"]
    return raw_path.split(b"/")


def _subscription_part(request: Request) -> int | None:
    """Return the subscription's index in `_parts`, if the path has one."""
    if "subscription" not in request.path_params:
        return None
    return 9 if "descriptor" in request.path_params else 8


def kind_of(request: Request) -> SubscriptionKind:
    """Return the parameter `type` of a subscription. As in Pulsar, the default is ordered."""
    text = request.query_params.get("type", SubscriptionKind.STREAM.value)
    try:
        return SubscriptionKind(text)
    except ValueError:
        known = " or ".join(kind.value for kind in SubscriptionKind)
        raise HTTPException(412, f"The parameter type must be {known}, not {text[:50]!r}.") from None


def number_of(request: Request, name: str) -> int | None:
    """Return an optional parameter that is a whole number; None if it is missing."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not _is_number(text):
        raise HTTPException(412, f"The parameter {name} must be a whole number, not {text[:50]!r}.")
    return int(text)


def numbers_of(request: Request, name: str) -> frozenset[int]:
    """Return a parameter that may be repeated, and is a whole number each time."""
    texts = request.query_params.getlist(name)
    for text in texts:
        if not _is_number(text):
            raise HTTPException(412, f"The parameter {name} must be a whole number, not {text[:50]!r}.")
    return frozenset(map(int, texts))


def required_number_of(request: Request, name: str) -> int:
    """Return a required parameter that is a whole number."""
    number = number_of(request, name)
    if number is None:
        raise HTTPException(412, f"The parameter {name} is missing. Give a whole number.")
    return number


def part_number_of(request: Request, part: str) -> int:
    """Return a whole number in the path."""
    text: str = request.path_params[part]
    if not _is_number(text):
        raise HTTPException(412, f"{text[:50]!r} is not a whole number. The path must have one at {{{part}}}.")
    return int(text)


def segment_id_of(request: Request, param: str) -> int:
    """Return the segment number in the path. Text that is not a number names no segment."""
    text: str = request.path_params[param]
    if not _is_number(text):
        raise UnknownSegment(f"{text[:50]!r} is not the number of a segment. The topic's layout lists the numbers.")
    return int(text)


def switch_of(request: Request, name: str, *, default: bool = False) -> bool:
    """Return an optional parameter that is true or false; `default` if it is missing."""
    text = request.query_params.get(name, "true" if default else "false")
    if text.lower() not in {"true", "false"}:
        raise HTTPException(412, f"The parameter {name} must be true or false, not {text[:50]!r}.")
    return text.lower() == "true"


def filters_of(request: Request) -> Mapping[str, str]:
    """Return the parameters `property=key=value`."""
    return dict(_filter(text) for text in request.query_params.getlist("property"))


async def json_map_of(request: Request) -> Mapping[str, object] | None:
    """Return the body as a JSON map; None if it is empty or null."""
    body = await _body(request)
    if not body.strip():
        return None
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"The body is not valid JSON: {error}.") from None
    if content is not None and not isinstance(content, dict):
        raise HTTPException(400, "The body must be a JSON map.")
    return content


async def json_of(request: Request) -> object:
    """Return the body as any JSON; None if it is empty or no JSON."""
    try:
        return orjson.loads(await _body(request))
    except orjson.JSONDecodeError:
        return None


async def properties_of(request: Request) -> Mapping[str, str]:
    """Return the body as a JSON map of texts; without a body, an empty map."""
    content = await json_map_of(request) or {}
    properties = {name: value for name, value in content.items() if isinstance(value, str)}
    if len(properties) < len(content):
        raise HTTPException(400, "The body must be a JSON map of property names to texts.")
    return properties


async def _body(request: Request) -> bytes:
    body = bytearray()
    if int(request.headers.get("content-length", "0")) <= BODY_BYTES_MAX:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    break
            else:
                whole = bytes(body)
                request.state.body = whole
                return whole
    raise HTTPException(413, f"The body is too large. It must have at most {BODY_BYTES_MAX} bytes.")


def _is_number(text: str) -> bool:
    # The length is checked first, because Python refuses to convert thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= len(str(SEGMENT_ID_MAX)) and int(text) <= SEGMENT_ID_MAX


def _filter(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (key and separator and value):
        raise HTTPException(412, f"The parameter property must be key=value, not {text[:50]!r}.")
    return key, value
