"""The tests of the client's suite that Apache Pulsar 5.0.0-M1 fails, and why. See docs/python-against-pulsar.md.

The table is strict: if a test that is listed as always failing passes, the run fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Difference:
    """Why a test fails there."""

    cause: str
    always: bool = True
    """False: it depends on who is faster."""


DIFFERENCES: Final[Mapping[str, Difference]] = {
    "test_a_transaction_goes_through_splits_and_merges_and_is_seen_whole_or_not_at_all": Difference(
        "what a transaction sends while the segment under it is sealed is refused, and may or may not be stored",
        always=False,
    ),
    "test_closing_is_leaving_and_the_others_go_on": Difference(
        "a closed stream consumer keeps its segments as long as its client is connected, and a minute longer",
    ),
    "test_a_stream_is_moved_back_into_drained_segments_and_to_its_end": Difference(
        "a stream consumer cannot seek: nothing but the administration's REST moves all of its subscription",
    ),
    "test_a_queue_that_is_moved_back_brings_what_was_acknowledged_inside_a_batch": Difference(
        "a seek leaves acknowledgements inside a batch as they are",
    ),
    "test_acknowledgements_inside_a_batch_collide_like_any_others": Difference(
        "of two transactions that acknowledge one message of a batch the second is not refused, or never answered",
    ),
    "test_the_readmes_examples_run_in_order": Difference(
        "the example that streams into Spark asks how far a segment is readable, which only Tidewire tells",
    ),
    "test_a_consumer_leaves_in_the_middle_of_messages_in_chunks": Difference(
        "a message does not come; by its source the broker acknowledges chunks unsent whose message is with nobody",
        always=False,
    ),
}
"""By the test's name."""
