"""The scenarios that Apache Kafka 4.3.0 does not always pass, and why. See docs/compatibility.md.

Kafka answers some requests before what they change is visible, so each of these depends on who is faster. A scenario
that Kafka can never pass is not played there: it uses the fixture `tidewire`.
"""

from collections.abc import Mapping
from typing import Final

DIFFERENCES: Final[Mapping[str, str]] = {
    "test_a_topics_settings_are_told_and_changed": "a changed setting shows later than the change is answered",
    "test_offsets_move_with_the_records_or_not_at_all": (
        "a commit is answered before its markers are written, so the group may still show its former offset"
    ),
    "test_a_transaction_of_offsets_alone_is_one": (
        "a commit is answered before its markers are written, so the group may still show no offset"
    ),
    "test_a_member_that_was_replaced_commits_no_offsets": (
        "a commit is answered before its markers are written, so the group may still show no offset"
    ),
    "test_a_topic_that_was_deleted_and_created_again_is_empty": (
        "a deletion is answered before the topic is gone, so it may still be listed and used"
    ),
    "test_clients_see_that_a_topic_grew": "new partitions may show later than they are answered",
}
"""By the test's name: the cause."""
