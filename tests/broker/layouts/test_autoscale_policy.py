"""Policies of automatic splits and merges: Pulsar's names, bounds, and what a topic overrides."""

import pytest

from broker.errors import AutoScalePolicyInvalid
from broker.layouts.autoscale_policy import AutoScaleOverride, AutoScalePolicy, override_of

EVERYTHING: dict[str, object] = {
    "enabled": False,
    "maxSegments": 8,
    "minSegments": 2,
    "maxDagDepth": 3,
    "splitCooldownSeconds": 1,
    "mergeCooldownSeconds": 2,
    "mergeWindowSeconds": 3,
    "splitMsgRateInThreshold": 4.5,
    "splitBytesRateInThreshold": 5,
    "splitMsgRateOutThreshold": 6.5,
    "splitBytesRateOutThreshold": 7,
    "mergeMsgRateInThreshold": 1.5,
    "mergeBytesRateInThreshold": 2,
    "mergeMsgRateOutThreshold": 3.5,
    "mergeBytesRateOutThreshold": 4,
}


def test_every_field_has_pulsars_name() -> None:
    override = override_of(EVERYTHING)
    assert override.as_map() == EVERYTHING
    assert override.over(AutoScalePolicy()) == AutoScalePolicy(False, 8, 2, 3, 1, 2, 3, 4.5, 5, 6.5, 7, 1.5, 2, 3.5, 4)


def test_what_is_not_set_is_left_to_the_settings() -> None:
    override = override_of({"maxSegments": 8, "enabled": None})
    assert override == AutoScaleOverride(max_segments=8)
    assert override.over(AutoScalePolicy(min_segments=3)) == AutoScalePolicy(max_segments=8, min_segments=3)
    assert override_of({}).as_map() == {}


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ({"maxSegment": 1}, "no field 'maxSegment'"),
        ({"enabled": 1}, "enabled must be true or false"),
        ({"maxSegments": True}, "maxSegments must be a whole number"),
        ({"maxSegments": 1.5}, "maxSegments must be a whole number"),
        ({"maxSegments": "1"}, "maxSegments must be a whole number"),
        ({"mergeWindowSeconds": 10**30}, "mergeWindowSeconds must be from -"),
        ({"splitMsgRateInThreshold": "a"}, "splitMsgRateInThreshold must be a number"),
        ({"splitMsgRateInThreshold": float("nan")}, "splitMsgRateInThreshold must be from -"),
        ({"splitMsgRateInThreshold": float("inf")}, "splitMsgRateInThreshold must be from -"),
        ({"minSegments": 0}, "minSegments must be at least 1."),
        ({"maxSegments": 0}, "maxSegments must be at least minSegments."),
        ({"minSegments": 65}, "maxSegments must be at least minSegments."),
        ({"maxSegments": 1025}, "maxSegments must be at most 1024."),
        ({"maxDagDepth": -1}, "maxDagDepth must not be negative."),
        ({"splitCooldownSeconds": -1}, "splitCooldownSeconds must not be negative."),
        ({"mergeMsgRateInThreshold": -1}, "mergeMsgRateInThreshold must not be negative."),
        ({"splitMsgRateInThreshold": 1000}, "splitMsgRateInThreshold must be above mergeMsgRateInThreshold."),
    ],
)
def test_what_makes_no_policy_is_refused(raw: dict[str, object], part: str) -> None:
    with pytest.raises(AutoScalePolicyInvalid) as refused:
        override_of(raw).over(AutoScalePolicy())
    assert part in str(refused.value)
