"""Decides when to split or merge a topic automatically, from its layout, load and consumers (PIP-483). Pure.

Splits are quick and merges are slow. A split protects throughput, so it waits only for a short cool-down. Consumers
that arrive together then cause one split. A merge only saves resources. So both segments must have been cold for a
window, the cool-down since the last merge must be over, and in doubt there is no merge:

    split   (a) an ordered subscription has more consumers than there are active segments: the busiest segment
            (b) a rate of a segment is above its split threshold: the segment that is furthest above
    merge       two neighbours, each below every merge threshold for the whole window, with fewer merges among their
                ancestors than the bound; the coldest pair. Not if (a) would then need a split, or if the two together
                were above a split threshold: they would only be split again.

Each decision is at most one split or one merge. The caller asks again when something has changed, or at `next_look_ms`:
the next moment at which time alone may change the decision. So nothing is polled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from broker.layouts.autoscale_policy import AutoScalePolicy
from broker.layouts.layout import Layout
from broker.layouts.parts import Segment

_FOREVER_MS: Final = 1 << 62

REPORTS_MAX: Final = 64
"""Most reports that are remembered for a segment. Beyond this, the oldest two become one with the higher rates."""


class SegmentLoad(NamedTuple):
    """The load of one segment, per second, from `since_ms` until the next report."""

    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    since_ms: int
    """When this was reported, in milliseconds since the epoch. A report is made when a rate has changed noticeably."""


@dataclass(frozen=True, slots=True)
class Split:
    """Split this segment."""

    segment_id: int
    reason: str
    """The reason, for the log."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge these two segments."""

    first_id: int
    second_id: int


Decision = Split | Merge | None


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the decision on a topic depends on, except the time."""

    layout: Layout
    loads: Mapping[int, Sequence[SegmentLoad]]
    """Reports by segment, oldest first. A segment without reports has had no traffic since `watching_since_ms`. If no
    segment has reports, the load is unknown. Such a topic is not merged, because a merge of unused segments gains
    nothing."""
    consumers: Mapping[str, int]
    """The number of consumers of each ordered subscription."""
    policy: AutoScalePolicy
    watching_since_ms: int


def with_report(known: Sequence[SegmentLoad], report: SegmentLoad) -> tuple[SegmentLoad, ...]:
    """Add a report to the known reports of a segment."""
    reports = (*known, report)
    if len(reports) <= REPORTS_MAX:
        return reports
    first, second, *later = reports
    joined = SegmentLoad(
        max(first.msg_rate_in, second.msg_rate_in),
        max(first.bytes_rate_in, second.bytes_rate_in),
        max(first.msg_rate_out, second.msg_rate_out),
        max(first.bytes_rate_out, second.bytes_rate_out),
        first.since_ms,
    )
    return joined, *later


def decide(situation: Situation, now_ms: int) -> Decision:
    """Decide what to do now. Time alone may turn None into a decision, which then stays until it is carried out."""
    if not situation.policy.enabled or situation.layout.intent is not None:
        return None
    return _split(situation, now_ms) or _merge(situation, now_ms)


def next_look_ms(situation: Situation, now_ms: int) -> int | None:
    """Return the next moment at which `decide` may change its answer in the same situation; None if it never does."""
    if decide(situation, _FOREVER_MS) == decide(situation, now_ms):
        return None
    layout, policy = situation.layout, situation.policy
    moments = [
        since_ms + policy.merge_window_seconds * 1000
        for segment in layout.active()
        if (since_ms := _cold_since_ms(situation, segment)) is not None
    ]
    if layout.last_split_ms is not None:
        moments.append(layout.last_split_ms + policy.split_cooldown_seconds * 1000)
    if layout.last_merge_ms is not None:
        moments.append(layout.last_merge_ms + policy.merge_cooldown_seconds * 1000)
    return min((moment for moment in moments if moment > now_ms), default=None)


def _split(situation: Situation, now_ms: int) -> Split | None:
    layout, policy = situation.layout, situation.policy
    active = layout.active()
    if len(active) >= policy.max_segments or _is_within(layout.last_split_ms, policy.split_cooldown_seconds, now_ms):
        return None
    candidates = [segment for segment in active if segment.range.start < segment.range.end]
    if _required(situation) > len(active) and candidates:
        busiest = max(candidates, key=lambda segment: _busyness(situation, segment))
        return Split(busiest.id, "more consumers than segments")
    hot = [(max(_overload(situation, segment)), -segment.id) for segment in candidates]
    if not hot or max(hot)[0] <= 1:
        return None
    segment_id = -max(hot)[1]
    overload = _overload(situation, layout.segments[segment_id])
    return Split(segment_id, f"{_RATES[overload.index(max(overload))]} is above its threshold")


def _merge(situation: Situation, now_ms: int) -> Merge | None:
    layout, policy = situation.layout, situation.policy
    active = layout.active()
    if (
        not situation.loads.keys() & {segment.id for segment in active}
        or len(active) <= max(policy.min_segments, layout.floor, _required(situation))
        or _is_within(layout.last_merge_ms, policy.merge_cooldown_seconds, now_ms)
    ):
        return None
    cold = [
        (sum(_overload(situation, first)) + sum(_overload(situation, second)), first.range, first.id, second.id)
        for first, second in pairwise(active)
        if _may_merge(situation, first, second, now_ms)
    ]
    return Merge(*min(cold)[2:]) if cold else None


def _may_merge(situation: Situation, first: Segment, second: Segment, now_ms: int) -> bool:
    together = zip(_overload(situation, first), _overload(situation, second), strict=True)
    return (
        max(first.merges, second.merges) < situation.policy.max_dag_depth
        and all(_is_cold(situation, segment, now_ms) for segment in (first, second))
        and all(one + other <= 1 for one, other in together)
    )


def _is_cold(situation: Situation, segment: Segment, now_ms: int) -> bool:
    since_ms = _cold_since_ms(situation, segment)
    return since_ms is not None and now_ms - since_ms >= situation.policy.merge_window_seconds * 1000


def _cold_since_ms(situation: Situation, segment: Segment) -> int | None:
    """Return since when every report was below all merge thresholds; None if the last one is not.

    A report that is older than the segment belongs to a segment of the same name in a deleted topic.
    """
    since_ms = None
    for load in reversed(_reports_of(situation, segment)):
        if not _is_below(situation.policy, load):
            break
        since_ms = load.since_ms
    return None if since_ms is None else max(segment.created_at_ms, since_ms)


def _is_below(policy: AutoScalePolicy, load: SegmentLoad) -> bool:
    return (
        load.msg_rate_in < policy.merge_msg_rate_in
        and load.bytes_rate_in < policy.merge_bytes_rate_in
        and load.msg_rate_out < policy.merge_msg_rate_out
        and load.bytes_rate_out < policy.merge_bytes_rate_out
    )


def _required(situation: Situation) -> int:
    return max(situation.consumers.values(), default=0)


def _busyness(situation: Situation, segment: Segment) -> tuple[float, int, int]:
    start, end = segment.range
    return _load_of(situation, segment).msg_rate_in, end - start, -segment.id


_RATES: Final = ("messages in", "bytes in", "messages out", "bytes out")


def _overload(situation: Situation, segment: Segment) -> tuple[float, ...]:
    """Return each rate as a fraction of its split threshold, so that messages and bytes can be compared and added."""
    policy, load = situation.policy, _load_of(situation, segment)
    return (
        load.msg_rate_in / policy.split_msg_rate_in,
        load.bytes_rate_in / policy.split_bytes_rate_in,
        load.msg_rate_out / policy.split_msg_rate_out,
        load.bytes_rate_out / policy.split_bytes_rate_out,
    )


def _load_of(situation: Situation, segment: Segment) -> SegmentLoad:
    return _reports_of(situation, segment)[-1]


def _reports_of(situation: Situation, segment: Segment) -> Sequence[SegmentLoad]:
    return situation.loads.get(segment.id) or (SegmentLoad(0, 0, 0, 0, situation.watching_since_ms),)


def _is_within(last_ms: int | None, seconds: int, now_ms: int) -> bool:
    return last_ms is not None and now_ms - last_ms < seconds * 1000
