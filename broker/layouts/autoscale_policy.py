"""Policies for automatic splits and merges: the broker's settings, and a topic's own settings (PIP-483).

`AutoScalePolicy` is complete. `AutoScaleOverride` has the fields that a topic sets for itself, in any combination. In
JSON both have Pulsar's names (`splitMsgRateInThreshold`), because administration clients map them onto classes.

Bounds are checked when a policy is read, so the decision (`broker.scalable.autoscale`) can rely on them. Every split
threshold is above zero and above the merge threshold of the same rate. This gap prevents a merged segment from being
split again at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from broker.errors import AutoScalePolicyInvalid
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, unknown_in

SEGMENTS_MAX: Final = 1024
"""The upper bound of `max_segments`: about as many segments as a layout's record can hold, including old ones."""
_WHOLE_MAX: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class AutoScalePolicy:
    """The policy for one topic. Rates are per second, over the last minute. A batch counts as its messages."""

    enabled: bool = True
    max_segments: int = 64
    """With this many active segments, the topic is not split automatically."""
    min_segments: int = 1
    max_dag_depth: int = 10
    """A segment with this many merges among its ancestors is not merged automatically. Splits have no such limit."""
    split_cooldown_seconds: int = 60
    """The least time between automatic splits. Consumers that arrive together then cause one split."""
    merge_cooldown_seconds: int = 300
    merge_window_seconds: int = 300
    """How long both segments must have been cold before they are merged."""
    split_msg_rate_in: float = 10_000.0
    split_bytes_rate_in: float = 50_000_000.0
    split_msg_rate_out: float = 50_000.0
    split_bytes_rate_out: float = 250_000_000.0
    merge_msg_rate_in: float = 1_000.0
    merge_bytes_rate_in: float = 5_000_000.0
    merge_msg_rate_out: float = 5_000.0
    merge_bytes_rate_out: float = 25_000_000.0

    def check(self) -> "AutoScalePolicy":
        """Check the policy's bounds, and return the policy.

        Raises:
            AutoScalePolicyInvalid: a value breaks a bound.
        """
        wrong = [sentence for is_wrong, sentence in self._wrong() if is_wrong]
        if wrong:
            raise AutoScalePolicyInvalid(" ".join(wrong))
        return self

    def _wrong(self) -> list[tuple[bool, str]]:
        pairs = [
            ("MsgRateIn", self.split_msg_rate_in, self.merge_msg_rate_in),
            ("BytesRateIn", self.split_bytes_rate_in, self.merge_bytes_rate_in),
            ("MsgRateOut", self.split_msg_rate_out, self.merge_msg_rate_out),
            ("BytesRateOut", self.split_bytes_rate_out, self.merge_bytes_rate_out),
        ]
        return [
            (self.min_segments < 1, "minSegments must be at least 1."),
            (self.max_segments < self.min_segments, "maxSegments must be at least minSegments."),
            (self.max_segments > SEGMENTS_MAX, f"maxSegments must be at most {SEGMENTS_MAX}."),
            (self.max_dag_depth < 0, "maxDagDepth must not be negative."),
            (self.split_cooldown_seconds < 0, "splitCooldownSeconds must not be negative."),
            (self.merge_cooldown_seconds < 0, "mergeCooldownSeconds must not be negative."),
            (self.merge_window_seconds < 0, "mergeWindowSeconds must not be negative."),
            *((merge < 0, f"merge{rate}Threshold must not be negative.") for rate, _split, merge in pairs),
            *(
                (not split > merge, f"split{rate}Threshold must be above merge{rate}Threshold.")
                for rate, split, merge in pairs
            ),
        ]


@dataclass(frozen=True, slots=True)
class AutoScaleOverride:
    """A topic's own settings; None leaves a field to the broker's settings. See `AutoScalePolicy`."""

    enabled: bool | None = None
    max_segments: int | None = None
    min_segments: int | None = None
    max_dag_depth: int | None = None
    split_cooldown_seconds: int | None = None
    merge_cooldown_seconds: int | None = None
    merge_window_seconds: int | None = None
    split_msg_rate_in: float | None = None
    split_bytes_rate_in: float | None = None
    split_msg_rate_out: float | None = None
    split_bytes_rate_out: float | None = None
    merge_msg_rate_in: float | None = None
    merge_bytes_rate_in: float | None = None
    merge_msg_rate_out: float | None = None
    merge_bytes_rate_out: float | None = None
    unknown: Unknown = NOTHING_UNKNOWN
    """Fields of a later release."""

    def over(self, policy: AutoScalePolicy) -> AutoScalePolicy:
        """Return the policy with these fields replaced.

        Raises:
            AutoScalePolicyInvalid: the result breaks a bound.
        """
        given = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        return replace(policy, **given).check()

    def as_map(self) -> dict[str, bool | int | float]:
        """Return the fields that are set, by Pulsar's names."""
        return {outer: value for name, outer in _NAMES.items() if (value := getattr(self, name)) is not None}


def override_of(raw: Mapping[str, object]) -> AutoScaleOverride:
    """Parse a map with Pulsar's names. A missing or null field is not set.

    Raises:
        AutoScalePolicyInvalid: a field is unknown, or its value has the wrong type.
    """
    given: dict[str, bool | int | float] = {}
    for outer, value in raw.items():
        name = _INNER_NAMES.get(outer)
        if name is None:
            raise AutoScalePolicyInvalid(
                f"An automatic scaling policy has no field {outer[:50]!r}. Its fields are {', '.join(_INNER_NAMES)}."
            )
        if value is not None:
            given[name] = _value(name, outer, value)
    return AutoScaleOverride(**given)  # type: ignore[arg-type]  # Each is of its field's kind: `_value` saw to that.


def stored_override_of(raw: Mapping[str, object]) -> AutoScaleOverride:
    """As `override_of`, for a stored policy: a later release may have added fields to it."""
    known = {outer: value for outer, value in raw.items() if outer in _INNER_NAMES}
    return replace(override_of(known), unknown=unknown_in(raw, _INNER_NAMES.keys()))


def _outer_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest) + ("Threshold" if "_rate_" in name else "")


_NAMES: Final = {field.name: _outer_name(field.name) for field in fields(AutoScaleOverride) if field.name != "unknown"}
_INNER_NAMES: Final = {outer: name for name, outer in _NAMES.items()}


def _value(name: str, outer: str, value: object) -> bool | int | float:
    if name == "enabled":
        if isinstance(value, bool):
            return value
        raise AutoScalePolicyInvalid(f"The field {outer} must be true or false.")
    is_rate = "_rate_" in name
    if isinstance(value, bool) or not isinstance(value, (int, float) if is_rate else int):
        raise AutoScalePolicyInvalid(f"The field {outer} must be a {'number' if is_rate else 'whole number'}.")
    assert isinstance(value, int | float)
    if not -_WHOLE_MAX <= value <= _WHOLE_MAX:
        raise AutoScalePolicyInvalid(f"The field {outer} must be from {-_WHOLE_MAX} to {_WHOLE_MAX}.")
    return float(value) if is_rate else value
