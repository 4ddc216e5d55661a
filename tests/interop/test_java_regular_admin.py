"""Pulsar's own administration client administers regular topics of a broker, and of a cluster.

The program is `RegularAdminScenarios` in java-v5/. It checks the results. In the cluster it asks a broker that owns
none of the topics, because that broker was drained.
"""

import subprocess
from pathlib import Path
from typing import Final

import pytest
import trio

from scripts.need import place
from tests.support.http import request
from tests.support.java import QUICK_JAVA
from tests.support.processes import running_broker
from tests.support.real_cluster import EMBEDDED, running_cluster

SECONDS_MAX: Final = 540
pytestmark = [pytest.mark.interop, pytest.mark.timeout(SECONDS_MAX + 60)]

STDERR_CHARACTERS_MAX: Final = 20_000
SCENARIOS: Final = (
    "topic_created_listed_deleted",
    "topic_names",
    "topic_refusals",
    "topic_in_use_deleted_by_force",
    "topic_unloaded_under_clients",
    "topic_retention",
    "partitions_created_extended_deleted",
    "stats_of_traffic",
    "stats_of_consumers",
    "stats_of_partitions",
    "internal_stats",
    "internal_stats_of_partitions",
    "subscription_at_its_positions",
    "subscription_deleted",
    "subscription_on_all_partitions",
    "skip_some",
    "skip_under_a_consumer",
    "skip_all",
    "skip_all_on_partitions",
    "expire_by_age",
    "expire_to_a_message",
    "reset_to_a_time",
    "reset_to_a_message",
    "reset_into_a_batch",
    "reset_under_a_consumer",
    "last_message_id",
    "backlog_in_bytes",
    "peek_messages",
    "peek_single_messages",
    "schema_versions",
    "schema_versions_of_a_scalable_topic",
    "schema_compatibility",
    "schema_of_pairs",
    "schema_of_a_producer",
)
"""What the program plays, in its order."""


def program() -> list[str]:
    """Return the command that starts the program, without its arguments."""
    target = place("pulsar-java-client")
    path = f"{target}/classes:{target}/lib/*"
    return ["java", *QUICK_JAVA, "-cp", path, "tidewire.interop.RegularAdminScenarios"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the program's output. The first test that fails shows its standard error and the broker's."""
    folder: Path = tmp_path_factory.mktemp("java-regular-admin")
    with running_broker(folder / "data") as broker:
        played = subprocess.run(
            [*program(), broker.service_url, broker.http_url],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS_MAX,
            check=False,
        )
        print(played.stderr[-STDERR_CHARACTERS_MAX:])
        print(broker.stderr[-STDERR_CHARACTERS_MAX:])
        return tuple(played.stdout.splitlines())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(lines: tuple[str, ...], scenario: str) -> None:
    said = [line for line in lines if line.split(":")[0].removeprefix("FAIL ").removeprefix("PASS ") == scenario]
    assert said == [f"PASS {scenario}"]


def test_the_program_plays_these_and_no_others(lines: tuple[str, ...]) -> None:
    played = tuple(line.split()[1].rstrip(":") for line in lines if line.startswith(("PASS ", "FAIL ")))
    assert played == SCENARIOS


async def test_every_broker_of_a_cluster_administers_what_others_own(tmp_path: Path) -> None:
    """C14, C21: a drained broker is asked, so it owns nothing and has others do all of it."""
    with trio.fail_after(SECONDS_MAX):
        async with running_cluster(tmp_path, *EMBEDDED) as cluster:
            asked = cluster.any
            drained = next(name for name, broker in cluster.brokers.items() if broker is asked)
            answer = await request(asked.http, "POST", f"/admin/v2/cluster/brokers/{drained}/drain")
            assert answer.status == 204, answer.body
            played = await trio.run_process(
                [*program(), cluster.url(), asked.http_url], capture_stdout=True, capture_stderr=True, check=False
            )
            owners = set((await cluster.claims()).values())
    said = played.stdout.decode().splitlines()
    assert [line for line in said if line.startswith("FAIL ")] == [], played.stderr.decode()[-STDERR_CHARACTERS_MAX:]
    assert [line.split()[1] for line in said if line.startswith("PASS ")] == list(SCENARIOS)
    assert drained not in owners
