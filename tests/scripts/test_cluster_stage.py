"""What the measurements of a cluster ask of brokers."""

import pytest

from scripts.cluster_stage import metric

METRICS = """# HELP tidewire_metadata_revision Revision of the metadata this broker holds
# TYPE tidewire_metadata_revision gauge
tidewire_metadata_revision_of_another 7
tidewire_metadata_revision{broker="one"} 41
tidewire_metadata_revision{broker="two"} 42
tidewire_alone 3.5
"""


def test_a_metric_is_found_by_its_whole_name() -> None:
    """With labels or without; the first broker that is named answered itself."""
    assert metric(METRICS, "tidewire_metadata_revision") == 41
    assert metric(METRICS, "tidewire_alone") == 3.5


def test_a_missing_metric_ends_the_benchmark() -> None:
    """A figure of zero would pass for a result."""
    with pytest.raises(SystemExit, match="no metric tidewire_meta"):
        metric(METRICS, "tidewire_meta")
