"""The unmodified Java v5 client of Apache Pulsar plays its scenarios against a broker, and each has its test here.

The program in java-v5/ does the playing and judges each scenario by itself; `scripts/need.py pulsar-java-client`
compiles it. One run serves all tests: starting a Java machine for each would cost more than the scenarios do.
"""

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

from scripts.need import place
from tests.support.processes import RunningBroker, running_broker

pytestmark = pytest.mark.interop

RUN_SECONDS_MAX: Final = 400.0
"""All scenarios together; they take about a minute, and each one that hangs costs its own 90 s."""

STDERR_CHARACTERS_MAX: Final = 20_000
"""How much of each process's standard error a failed test shows, from the end."""


@dataclass(frozen=True)
class Outcome:
    """What the program said, and what it and the broker wrote to standard error meanwhile."""

    status: int
    lines: tuple[str, ...]
    program_stderr: str
    broker_stderr: str

    def expect_passed(self, scenario: str) -> None:
        """Fail with everything known unless the scenario passed."""
        if f"PASS {scenario}" in self.lines:
            return
        said = [line for line in self.lines if line.startswith(f"FAIL {scenario}:")] or ["it was not played"]
        pytest.fail(
            f"{scenario}: {said[0]}\n"
            f"-- the program's standard error:\n{self.program_stderr[-STDERR_CHARACTERS_MAX:]}\n"
            f"-- the broker's standard error:\n{self.broker_stderr[-STDERR_CHARACTERS_MAX:]}",
            pytrace=False,
        )


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """All scenarios played against one broker, which is killed and restarted as often as the program asks for it."""
    target = place("pulsar-java-client")
    folder = tmp_path_factory.mktemp("java-v5")
    with running_broker(folder / "data") as broker:
        status, lines, stderr = play(target, broker, folder / "program.stderr")
        yield Outcome(status, lines, stderr, broker.stderr)


def play(target: Path, broker: RunningBroker, stderr_path: Path) -> tuple[int, tuple[str, ...], str]:
    """Run the program to its end; its exit status, its lines, and its standard error."""
    with (
        stderr_path.open("wb") as stderr,
        subprocess.Popen(
            [
                *("java", "-cp", f"{target}/classes:{target}/lib/*", "tidewire.interop.Main"),
                *(broker.service_url, broker.http_url, "--restarts"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
        ) as program,
    ):
        # Ends the reading below too, since the pipe ends with the program.
        deadline = threading.Timer(RUN_SECONDS_MAX, program.kill)
        deadline.start()
        try:
            assert program.stdin is not None
            assert program.stdout is not None
            lines = tuple(answered(program.stdout, program.stdin, broker))
        except BaseException:
            program.kill()
            raise
        finally:
            deadline.cancel()
    return program.returncode, lines, stderr_path.read_text(encoding="utf-8", errors="replace")


def answered(output: IO[str], answers: IO[str], broker: RunningBroker) -> Iterator[str]:
    """The program's lines, except for its requests to restart the broker, which are done and answered."""
    for line in output:
        if line == "RESTART\n":
            broker.restart()
            answers.write("RESTARTED\n")
            answers.flush()
        else:
            yield line.rstrip("\n")


SCENARIOS: Final = (
    "create_and_delete_topic",
    "split_shows_in_metadata",
    "split_of_sealed_segment_is_refused",
    "transaction_across_split",
    "transaction_across_split_seen_first",
    "transaction_across_two_splits",
    "aborted_transaction_across_split",
    "attached_consumer_through_split",
    "sends_in_flight_at_split",
    "transaction_in_flight_at_split",
    "transaction_over_four_segments",
    "aborted_transaction_is_never_seen",
    "plain_messages_between",
    "many_transactions_open_at_once",
    "batches_in_transaction",
    "ended_transaction_is_closed_to_client",
    "repeated_end_on_wire",
    "send_in_transaction_ended_elsewhere",
    "timed_out_transaction_is_never_seen",
    "queue_consumer_gets_all",
    "queue_consumers_share",
    "queue_consumer_through_split",
    "two_subscriptions_are_independent",
    "reopen_gets_nothing",
    "reopen_under_another_name",
    "unacknowledged_comes_again",
    "open_transaction_survives_kill",
    "ended_transactions_survive_kill",
    "split_topic_survives_kill",
)
"""What the program plays, in its order."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcome: Outcome, scenario: str) -> None:
    """What the client's own user would notice; the numbers of the requirements stand in the Java sources."""
    outcome.expect_passed(scenario)


def test_the_program_plays_these_and_no_others(outcome: Outcome) -> None:
    played = tuple(line.split()[1].rstrip(":") for line in outcome.lines if line.startswith(("PASS ", "FAIL ")))
    assert played == SCENARIOS


def test_the_program_sums_up(outcome: Outcome) -> None:
    failed = sum(line.startswith("FAIL ") for line in outcome.lines)
    assert outcome.lines[-1] == f"{len(SCENARIOS) - failed} passed, {failed} failed"
    assert outcome.status == (1 if failed else 0)
