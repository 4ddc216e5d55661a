"""What must be true of every layout; a stored one is not taken on trust.

Layouts that the functions of `broker.layouts.layout` return keep all of this, which its tests show; a record that does
not was damaged or written by something else, and its topic is not served from it.
"""

from broker.layouts.layout import Layout
from broker.layouts.parts import HashRange, Intent, Segment
from broker.names import HASH_MAX


def wrong_in(layout: Layout) -> list[str]:
    """What is wrong with a layout, in words; empty for every layout that a sequence of its own functions leads to."""
    everything = [*layout.segments.items(), *layout.pruned.items()]
    return [
        *_wrong_ranges([segment.range for segment in layout.active()]),
        *(wrong for segment in layout.segments.values() for wrong in _wrong_segment(layout, segment)),
        *(_wrong_intent(layout, layout.intent) if layout.intent is not None else ()),
        *(f"key {key} holds segment {value.id}" for key, value in everything if key != value.id),
        *(f"pruned segment {key} is part of the layout" for key in layout.pruned if key in layout.segments),
        *(f"pruned segment {key} is ACTIVE" for key, value in layout.pruned.items() if value.is_active),
    ]


def _wrong_segment(layout: Layout, segment: Segment) -> list[str]:
    wrong = []
    if not 0 <= segment.id < layout.next_segment_id:
        wrong.append("its id was never given out")
    if segment.is_active == bool(segment.children):
        wrong.append("a SEALED segment has children, an ACTIVE one has none")
    if segment.is_active != (segment.sealed_at_epoch is None) or segment.is_active != (segment.sealed_at_ms is None):
        wrong.append("it says when it was sealed exactly if it is SEALED")
    sealed_at_epoch = segment.sealed_at_epoch
    if not 0 <= segment.created_at_epoch <= layout.epoch or (
        sealed_at_epoch is not None and not segment.created_at_epoch < sealed_at_epoch <= layout.epoch
    ):
        wrong.append("its epochs do not rise")
    for child_id in segment.children:
        child = layout.segments.get(child_id)
        if child is None or segment.id not in child.parents:
            wrong.append(f"its child {child_id} does not know it")
    heirs = [layout.segments[i].range for i in segment.children if i in layout.segments]
    if heirs and not (min(heirs).start <= segment.range.start and segment.range.end <= max(heirs).end):
        wrong.append("its children do not hold what it held")
    for parent_id in segment.parents:
        parent = layout.segments.get(parent_id)
        if parent is None or segment.id not in parent.children or parent_id >= segment.id:
            wrong.append(f"its parent {parent_id} does not know it or is younger")
    return [f"segment {segment.id}: {what}" for what in wrong]


def _wrong_intent(layout: Layout, intent: Intent) -> list[str]:
    wrong = []
    parents = [layout.segments[i] for i in intent.parents if i in layout.segments]
    if len(parents) != len(intent.parents) or not parents:
        return ["intent: its parents are not all there"]
    if intent.sealing:
        heirs = tuple(child.id for child in intent.children)
        if any(parent.children != heirs for parent in parents):
            wrong.append("intent: its children did not replace its parents")
        return wrong
    if not all(parent.is_active for parent in parents):
        wrong.append("intent: its parents are not all ACTIVE")
    if any(child.id >= layout.next_segment_id or child.id in layout.segments for child in intent.children):
        wrong.append("intent: its children's ids are not reserved")
    kept = [segment.range for segment in layout.active() if segment.id not in intent.parents]
    if _wrong_ranges(sorted([*kept, *(child.range for child in intent.children)])):
        wrong.append("intent: its children would not hold what its parents hold")
    return wrong


def _wrong_ranges(ranges: list[HashRange]) -> list[str]:
    """Why these ranges, in order, do not divide the hash space exactly; empty if they do."""
    bounds = [-1, *(bound for hash_range in ranges for bound in hash_range), HASH_MAX + 1]
    gaps_closed = all(end + 1 == start for end, start in zip(bounds[::2], bounds[1::2], strict=True))
    upwards = all(hash_range.start <= hash_range.end for hash_range in ranges)
    return [] if gaps_closed and upwards else [f"ranges {[tuple(r) for r in ranges]} do not divide the hash space"]
