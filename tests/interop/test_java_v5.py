"""The unmodified Java v5 client of Apache Pulsar runs its scenarios against a broker, and each has its test here.

The program in java-v5/ runs and judges each scenario; `scripts/need.py pulsar-java-client` compiles it. One run serves
all tests, because starting Java for each would cost more than the scenarios do.
"""

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

from scripts.need import place
from tests.support.java import QUICK_JAVA
from tests.support.processes import RunningBroker, running_broker

pytestmark = pytest.mark.interop

RUN_SECONDS_MAX: Final = 560.0
"""All scenarios together; they take two to three minutes, and each one that hangs costs one of four players 240 s."""

GRACE_SECONDS: Final = "25"
"""How long consumers that are away are waited for: long enough to come back in, short enough to wait for it to pass."""

STDERR_CHARACTERS_MAX: Final = 20_000
"""How much of each process's standard error a failed test shows, from the end."""


@dataclass(frozen=True)
class Outcome:
    """The program's output, and the standard error of the program and the broker."""

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
    """Run all scenarios against one broker, which is killed and restarted as the program requests."""
    target = place("pulsar-java-client")
    folder = tmp_path_factory.mktemp("java-v5")
    with running_broker(folder / "data", "--consumer-session-grace-seconds", GRACE_SECONDS) as broker:
        status, lines, stderr = play(target, broker, folder / "program.stderr")
        yield Outcome(status, lines, stderr, broker.stderr)


def program_in(target: Path) -> tuple[str, ...]:
    """Return the command that starts the scenarios' compiled program."""
    return ("java", *QUICK_JAVA, "-cp", f"{target}/classes:{target}/lib/*", "tidewire.interop.Main")


def play(target: Path, broker: RunningBroker, stderr_path: Path) -> tuple[int, tuple[str, ...], str]:
    """Run the program to its end. Return its exit status, its lines, and its standard error."""
    with (
        stderr_path.open("wb") as stderr,
        subprocess.Popen(
            [
                *program_in(target),
                *(broker.service_url, broker.http_url, "--restarts"),
                *(name for name in SCENARIOS if name not in NOT_SERVED_YET),
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
    """Yield the program's lines. Its requests to restart the broker are done and answered instead."""
    for line in output:
        if line == "RESTART\n":
            broker.restart()
            answers.write("RESTARTED\n")
            answers.flush()
        else:
            yield line.rstrip("\n")


SCENARIOS: Final = (
    "message_keeps_all_its_parts",
    "messages_without_key_are_spread",
    "empty_message",
    "sequence_ids_and_producer_name",
    "sends_without_waiting_keep_their_order",
    "unbatched_sends_keep_their_order",
    "parts_of_batched_messages",
    "flush_waits_for_receipts",
    "two_producers_on_one_topic",
    "compressed_with_none",
    "compressed_with_lz4",
    "compressed_with_zlib",
    "compressed_with_zstd",
    "compressed_with_snappy",
    "message_of_one_megabyte",
    "message_above_the_limit_is_refused",
    "chunked_message",
    "chunked_messages_of_two_producers",
    "chunked_messages_of_a_shared_queue",
    "chunked_messages_of_a_consumer_that_leaves",
    "receive_without_blocking",
    "receive_several_at_once",
    "schema_bool",
    "schema_int8",
    "schema_int16",
    "schema_int32",
    "schema_int64",
    "schema_float32",
    "schema_float64",
    "schema_string",
    "schema_json",
    "schema_avro",
    "schema_avro_in_transaction",
    "schema_auto_consume",
    "schema_of_encoded_bytes",
    "schema_grows_by_a_field",
    "incompatible_avro_producer_is_refused",
    "incompatible_json_producer_is_refused",
    "incompatible_consumer_is_refused",
    "other_kind_of_schema_is_refused",
    "schema_holds_after_split",
    "queue_consumer_gets_all",
    "queue_consumers_share",
    "queue_consumer_through_split",
    "two_subscriptions_are_independent",
    "reopen_gets_nothing",
    "reopen_under_another_name",
    "unacknowledged_comes_again",
    "stream_consumers_share_segments",
    "stream_consumer_joins",
    "stream_consumer_leaves",
    "stream_consumers_share_through_split",
    "stream_consumer_loses_its_client",
    "stream_consumer_is_waited_for",
    "stream_consumer_that_stays_away_is_replaced",
    "queue_consumer_leaves_messages_to_other",
    "queue_consumers_share_through_split",
    "stream_from_latest",
    "queue_from_latest",
    "stream_from_latest_through_split",
    "negative_ack_comes_again",
    "negative_ack_goes_to_either_consumer",
    "negative_ack_inside_a_batch",
    "negative_ack_on_sealed_parent",
    "ack_timeout_comes_again",
    "dead_letter_after_redeliveries",
    "acknowledged_part_of_batch_stays_so",
    "unacknowledged_comes_to_every_successor",
    "checkpoint_consumer_from_earliest",
    "checkpoint_consumer_from_latest",
    "checkpoint_consumer_resumes",
    "checkpoint_inside_a_batch",
    "checkpoint_consumer_through_split",
    "checkpoint_resumes_after_split",
    "checkpoint_consumer_waits_for_transactions",
    "reader_from_earliest_over_aborted_data",
    "checkpoint_receive_several",
    "checkpoint_group_shares_segments",
    "checkpoint_group_through_split",
    "seek_back_to_a_time",
    "seek_under_attached_consumer",
    "seek_of_queue_subscription",
    "seek_to_before_a_split",
    "skip_all_skips_what_is_left",
    "seek_of_unknown_subscription_is_refused",
    "queue_consumer_of_a_namespace",
    "stream_consumer_of_a_namespace",
    "namespace_consumer_follows_new_topics",
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
    "merge_shows_in_metadata",
    "merge_of_wrong_segments_is_refused",
    "order_of_keys_through_merge",
    "order_of_keys_through_split_and_merge",
    "transaction_across_merge",
    "aborted_transaction_across_merge",
    "attached_consumer_through_merge",
    "queue_consumer_through_merge",
    "ack_on_merged_parents_in_transaction",
    "transaction_over_four_segments",
    "aborted_transaction_is_never_seen",
    "plain_messages_between",
    "many_transactions_open_at_once",
    "batches_in_transaction",
    "ended_transaction_is_closed_to_client",
    "repeated_end_on_wire",
    "send_in_transaction_ended_elsewhere",
    "timed_out_transaction_is_never_seen",
    "ids_of_aborted_transaction_sent_again",
    "ids_of_open_transaction_sent_again",
    "consume_and_produce_in_transaction",
    "consume_and_produce_across_split",
    "transaction_over_two_topics",
    "transaction_over_two_namespaces",
    "aborted_transaction_over_two_namespaces",
    "empty_transactions_end",
    "double_commit_and_double_abort",
    "commit_after_abort_is_refused",
    "commit_waits_for_sends_under_way",
    "transaction_of_closed_producer",
    "large_messages_in_transaction",
    "transactions_one_after_another",
    "commit_racing_abort",
    "ack_in_committed_transaction",
    "ack_in_aborted_transaction_comes_again",
    "ack_in_open_transaction_is_not_delivered_to_others",
    "consumer_closed_before_commit",
    "consumer_closed_before_abort",
    "cumulative_ack_in_committed_transaction",
    "cumulative_ack_in_aborted_transaction",
    "cumulative_ack_again_where_nothing_moved",
    "ack_inside_batch_in_committed_transaction",
    "ack_inside_batch_in_aborted_transaction",
    "cumulative_ack_inside_batch_in_transaction",
    "ack_pending_in_another_transaction_conflicts",
    "ack_twice_in_one_transaction_conflicts",
    "ack_of_acknowledged_message_conflicts",
    "abort_releases_acks_to_another_transaction",
    "ack_in_transaction_ended_elsewhere_is_refused",
    "ack_in_timed_out_transaction_comes_again",
    "ack_on_sealed_parent_in_transaction",
    "ack_on_sealed_parent_in_aborted_transaction",
    "cumulative_ack_across_split_in_transaction",
    "two_subscriptions_in_one_transaction",
    "plain_and_transactional_acks_mixed",
    "regular_topic_stream_consumer",
    "regular_topic_stream_consumers_take_turns",
    "regular_topic_queue_consumers_share",
    "regular_topic_checkpoint_consumer",
    "regular_topic_of_old_and_new_clients",
    "old_consumer_of_a_pattern_follows_new_topics",
    "regular_topic_refuses_transactions",
    "migrate_under_running_clients",
    "migrate_under_sends",
    "migrate_then_split_then_read_all",
    "migrated_subscriptions_keep_their_place",
    "migrate_under_old_clients",
    "regular_reader_seeks",
    "regular_reader_seeks_in_batches",
    "regular_consumer_seeks",
    "regular_consumer_seeks_in_batches",
    "regular_table_view",
    "delayed_delivery_is_refused",
    "reconsuming_later_is_refused",
    "credentials_are_refused",
    "unserved_producers_are_refused",
    "unserved_consumers_are_refused",
    "open_transaction_survives_kill",
    "ended_transactions_survive_kill",
    "split_topic_survives_kill",
    "pending_acks_survive_kill_and_commit",
    "pending_acks_survive_kill_and_abort",
    "committed_acks_survive_kill",
    "ack_inside_batch_survives_kill",
    "sends_under_way_at_kill_are_not_lost",
    "sends_under_way_at_kill_come_once",
    "checkpoint_survives_kill",
    "regular_topic_survives_kill",
    "migrated_topic_survives_kill",
)
"""What the program plays, in its order."""


NOT_SERVED_YET: Final[dict[str, str]] = {}
"""Scenarios that are not played, and what the broker still lacks for each."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcome: Outcome, scenario: str) -> None:
    """The client's own user would notice the result; the Java sources have the requirements' numbers."""
    if scenario in NOT_SERVED_YET:
        pytest.skip(f"NOT SERVED YET: {NOT_SERVED_YET[scenario]}")
    outcome.expect_passed(scenario)


def test_the_program_plays_these_and_no_others(outcome: Outcome) -> None:
    played = tuple(line.split()[1].rstrip(":") for line in outcome.lines if line.startswith(("PASS ", "FAIL ")))
    assert played == tuple(name for name in SCENARIOS if name not in NOT_SERVED_YET)


def test_no_scenario_is_forgotten() -> None:
    listed = subprocess.run(
        [*program_in(place("pulsar-java-client")), "--list"], capture_output=True, text=True, check=True
    )
    assert tuple(listed.stdout.split()) == SCENARIOS


def test_what_is_left_out_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert NOT_SERVED_YET.keys() <= set(SCENARIOS)
    with capsys.disabled():
        for scenario, lacking in NOT_SERVED_YET.items():
            print(f"\n*** NOT SERVED YET: {scenario}: {lacking} ***", end="")


def test_the_program_sums_up(outcome: Outcome) -> None:
    failed = sum(line.startswith("FAIL ") for line in outcome.lines)
    played = len(SCENARIOS) - len(NOT_SERVED_YET)
    assert outcome.lines[-1] == f"{played - failed} passed, {failed} failed"
    assert outcome.status == (1 if failed else 0)
