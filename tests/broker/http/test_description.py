"""The description of what is served, and the refusals of what Pulsar serves and this broker does not."""

import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from broker.addresses import Address
from broker.http.application import build_application
from broker.http.openapi import REFUSALS
from broker.http.resources import Call, Resource
from storage.metadata.memory import MemoryStore
from tests.support.http import FakeCluster, FakeMonitor, FakeTopics, request


def application() -> Starlette:
    return build_application(FakeTopics(), FakeMonitor(), MemoryStore(), FakeCluster(), version="1.2.3")


def all_calls() -> list[Call]:
    calls: list[Call] = []
    for route in application().routes:
        assert isinstance(route, Route)
        assert isinstance(route.endpoint, Resource), f"{route.path} is not in a table of calls"
        assert route.methods is not None
        assert route.methods - {"HEAD"} == set(route.endpoint.calls)
        calls += route.endpoint.calls.values()
    return calls


async def test_every_call_that_is_served_is_described(server: Address) -> None:
    document = (await request(server, "GET", "/openapi.json")).json
    described = {(method.upper(), path) for path, calls in document["paths"].items() for method in calls}
    assert described == {(call.method, call.path) for call in all_calls() if call.is_served}
    assert ("GET", "/openapi.json") in described


async def test_the_description_is_sound(server: Address) -> None:
    """OpenAPI 3.1: every variable part is a required parameter, ids differ, and every call has an answer."""
    document = (await request(server, "GET", "/openapi.json")).json
    assert document["openapi"] == "3.1.0"
    operations = [(path, one) for path, calls in document["paths"].items() for one in calls.values()]
    ids = [one["operationId"] for _path, one in operations]
    assert len(set(ids)) == len(ids)
    for path, one in operations:
        parts = [given["name"] for given in one["parameters"] if given["in"] == "path"]
        assert parts == re.findall(r"\{(\w+)\}", path)
        names = [(given["in"], given["name"]) for given in one["parameters"]]
        assert len(set(names)) == len(names)
        assert all(given["description"].endswith(".") for given in one["parameters"])
        assert one["summary"].endswith(".")
        assert {"200", "204"} & one["responses"].keys()
        for status, answer in one["responses"].items():
            assert answer["description"]
            if int(status) in REFUSALS:
                assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Refusal"}
    assert list(document["components"]["schemas"]) == ["Refusal"]


async def test_no_two_paths_differ_only_in_the_names_of_their_parts(server: Address) -> None:
    """Otherwise the second one of them would never be asked."""
    shapes: dict[tuple[str, str], str] = {}
    for call in all_calls():
        shape = call.method, re.sub(r"\{[^}]*\}", "{}", call.path)
        assert shape not in shapes, (call.path, shapes[shape])
        shapes[shape] = call.path


async def test_the_page_shows_every_call_and_loads_nothing_from_elsewhere(server: Address) -> None:
    answer = await request(server, "GET", "/docs")
    assert answer.headers["content-type"].startswith("text/html")
    page = answer.body.decode()
    for call in all_calls():
        assert f"<code>{call.method} {call.path}</code>" in page
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", page) == ["/openapi.json"]


async def test_the_version_and_the_cluster_are_told(server: Address) -> None:
    assert (await request(server, "GET", "/admin/v2/brokers/version")).body == b"unknown"
    assert (await request(server, "GET", "/admin/v2/clusters")).json == ["standalone"]


def filled(path: str) -> str:
    path = path.replace("{subscription}", "s")
    return re.sub(r"\{rest:path\}", "a/b/c", re.sub(r"\{descriptor\}", "0000-ffff-0", path)).translate(
        {123: "", 125: ""}
    )


async def test_what_pulsar_serves_besides_is_refused_by_name(server: Address) -> None:
    refused = [call for call in all_calls() if not call.is_served]
    assert len(refused) > 200
    for call in refused:
        answer = await request(server, call.method, filled(call.path))
        # What is about a segment names it.
        assert answer.status == 501, call.path
        assert answer.reason.endswith(call.summary.removeprefix("A segment"))
        assert answer.reason.endswith(".")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/v2/scalable/public/default/x/subscription"),
        ("GET", "/admin/v2/persistent/public/default/x/stat"),
        ("POST", "/admin/v2/persistent/public/default/x/dispatchRates"),
        ("GET", "/admin/v2/namespaces/public/default/dispatchRates"),
        ("GET", "/admin/v2/tenant"),
    ],
)
async def test_a_typing_error_is_not_found(server: Address, method: str, path: str) -> None:
    answer = await request(server, method, path)
    assert answer.status == 404
    assert (
        answer.reason
        == f"This broker does not serve {method} {path}. Check the method and the path: /docs lists all calls."
    )


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("PATCH", "/admin/v2/persistent/public/default/x", "It serves DELETE, PUT there."),
        ("POST", "/metrics", "It serves GET there."),
        ("PATCH", "/admin/v2/clusters/far", "It serves GET there."),
        (
            *("GET", "/admin/v2/persistent/public/default/x"),
            "Below that path it serves GET at examinemessage, getMessageIdByIndex, internalStats, lastMessageId, log,"
            " messages, partitioned-internalStats, partitioned-stats, partitions, retention, stats, subscriptions.",
        ),
    ],
)
async def test_a_method_that_a_path_has_not_is_answered_with_those_it_has(
    server: Address, method: str, path: str, hint: str
) -> None:
    """So nobody takes it for a typing error in the path."""
    answer = await request(server, method, path)
    assert (answer.status, answer.reason) == (405, f"This broker does not serve {method} {path}. {hint}")
