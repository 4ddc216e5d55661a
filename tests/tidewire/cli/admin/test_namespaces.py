"""`tidewire namespaces`, against a broker in a separate process."""

import json
import uuid

import pytest

from tests.tidewire.cli.conftest import CommandLine


@pytest.fixture
def tenant() -> str:
    """A tenant that no other test uses."""
    return f"t-{uuid.uuid4().hex}"


def test_a_namespace_is_created_listed_and_deleted(tidewire: CommandLine, tenant: str) -> None:
    """Part 9: one that is created is there while it is empty, and one that has topics is there by itself."""
    name, used = f"{tenant}/made", f"{tenant}/used"
    assert "does not exist" in tidewire.complaint("namespaces", "list", tenant)
    assert tidewire.well("namespaces", "create", name) == f"created {name}\n"
    assert "already" in tidewire.complaint("namespaces", "create", name)
    tidewire.well("produce", f"persistent://{used}/a", "m")
    assert tidewire.well("namespaces", "list", tenant) == f"{name}\n{used}\n"
    every = json.loads(tidewire.well("namespaces", "list", "--json"))
    assert [{"namespace": one} for one in (name, used)] == [one for one in every if one["namespace"].startswith(tenant)]
    assert {"namespace": "public/default"} in every
    assert "--yes" in tidewire.complaint("namespaces", "delete", name, status=2)
    assert tidewire.well("namespaces", "delete", name, "--yes") == f"deleted {name}\n"
    assert "has topics" in tidewire.complaint("namespaces", "delete", used, "--yes")
    assert tidewire.well("namespaces", "list", tenant) == f"{used}\n"


def test_a_tenant_without_namespaces_is_said_to_have_none(tidewire: CommandLine, tenant: str) -> None:
    assert json.loads(tidewire.well("namespaces", "create", f"{tenant}/a", "--json")) == {
        "namespace": f"{tenant}/a",
        "created": True,
    }
    tidewire.well("namespaces", "delete", f"{tenant}/a", "--yes")
    empty = tidewire("namespaces", "list", tenant)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr == (
        f"tidewire namespaces: Tenant {tenant} has no namespaces. "
        f"Create one with `tidewire namespaces create {tenant}/NAME`.\n"
    )
    assert tidewire.well("namespaces", "list", tenant, "--json") == "[]\n"


def test_a_policy_applies_to_the_topics_that_have_none(tidewire: CommandLine, tenant: str) -> None:
    name = f"{tenant}/kept"
    topic = f"persistent://{name}/a"
    tidewire.well("topics", "create", topic)
    assert tidewire.well("namespaces", "retention", name) == (
        f"{name} has no policy. The setting of the broker applies\n"
    )
    changed = tidewire.well("namespaces", "retention", name, "--time", "1h", "--size", "1G")
    assert changed == f"{name} keeps what is acknowledged for 60 minutes and up to 1,024 MiB\n"
    told = json.loads(tidewire.well("namespaces", "retention", name, "--json"))
    assert told == {"namespace": name, "minutes": 60, "megabytes": 1024, "isOwn": True}
    assert tidewire.well("topics", "retention", topic).endswith(
        "for 60 minutes and up to 1,024 MiB (not its own policy)\n"
    )
    removed = json.loads(tidewire.well("namespaces", "retention", name, "--remove", "--json"))
    assert removed == {"namespace": name, "minutes": None, "megabytes": None, "isOwn": False}
    assert "keeps everything" in tidewire.well("topics", "retention", topic)


@pytest.mark.parametrize(
    "mistake",
    [
        ("create", "alone"),
        ("create", "a/b/c"),
        ("list", "a/b"),
        ("retention", "a/b", "--time", "7 days"),
        ("retention", "a/b", "--remove", "--time", "7d"),
    ],
    ids=" ".join,
)
def test_mistakes_are_told_in_one_sentence(tidewire: CommandLine, mistake: tuple[str, ...]) -> None:
    complaint = tidewire.complaint("namespaces", *mistake, status=2)
    assert complaint.startswith("tidewire namespaces: ")
    assert complaint.count("\n") == 1
