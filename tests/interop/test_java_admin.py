"""Pulsar's own administration client runs its scenarios against a broker, and each has its test here.

The program is `AdminScenarios` in java-v5/; `scripts/need.py pulsar-java-client` compiles it. It checks the results.
"""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from scripts.need import place
from tests.support.java import QUICK_JAVA
from tests.support.processes import running_broker

pytestmark = pytest.mark.interop

RUN_SECONDS_MAX: Final = 540.0
STDERR_CHARACTERS_MAX: Final = 20_000
SCENARIOS: Final = (
    "admin_health",
    "admin_creates_shows_and_deletes",
    "admin_lists_by_properties",
    "admin_splits_and_merges",
    "admin_refused_changes_of_layouts",
    "admin_subscriptions",
    "admin_deletes_subscription_in_use",
    "admin_clears_backlog",
    "admin_seeks_queue_by_time",
    "admin_seeks_attached_stream_over_split",
    "admin_segment_backlog_and_seek",
    "admin_scaling_policy",
    "admin_unknown_topic",
    "admin_topic_names",
    "admin_force_deletes_under_clients",
    "admin_migrates",
    "admin_migrates_under_clients",
    "namespace_queue_consumer_follows_topics",
    "namespace_stream_consumer_follows_topics",
    "namespace_consumer_begins_with_no_topic",
)
"""What the program plays, in its order."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the program's output. The first test that fails shows its standard error and the broker's."""
    target = place("pulsar-java-client")
    folder: Path = tmp_path_factory.mktemp("java-admin")
    with running_broker(folder / "data") as broker:
        played = subprocess.run(
            [
                *("java", *QUICK_JAVA, "-cp", f"{target}/classes:{target}/lib/*", "tidewire.interop.AdminScenarios"),
                *(broker.service_url, broker.http_url),
            ],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=RUN_SECONDS_MAX,
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
