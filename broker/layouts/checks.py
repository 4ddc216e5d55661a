"""Checks the invariants of layouts that are read from the metadata store.

Every layout that the functions of `broker.layouts.layout` return satisfies them; its tests show that. A record that
does not was damaged, or written by other software. Its topic is not served.
"""

from broker.layouts.layout import Layout
from broker.layouts.parts import HashRange, Intent, Segment
from broker.names import HASH_MAX


def wrong_in(layout: Layout) -> list[str]:
    """Describe what is wrong with a layout; empty for every layout that its own functions can produce."""
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
        wrong.append("its id was never allocated")
    if segment.is_active == bool(segment.children):
        wrong.append("it must have children if it is SEALED, and none if it is ACTIVE")
    if segment.is_active != (segment.sealed_at_epoch is None) or segment.is_active != (segment.sealed_at_ms is None):
        wrong.append("it must have a sealing time if it is SEALED, and none if it is ACTIVE")
    sealed_at_epoch = segment.sealed_at_epoch
    if not 0 <= segment.created_at_epoch <= layout.epoch or (
        sealed_at_epoch is not None and not segment.created_at_epoch < sealed_at_epoch <= layout.epoch
    ):
        wrong.append("its epochs do not rise")
    for child_id in segment.children:
        child = layout.segments.get(child_id)
        if child is None or segment.id not in child.parents:
            wrong.append(f"its child {child_id} does not list it as a parent")
    heirs = [layout.segments[i].range for i in segment.children if i in layout.segments]
    if heirs and not (min(heirs).start <= segment.range.start and segment.range.end <= max(heirs).end):
        wrong.append("its children do not cover its hash range")
    for parent_id in segment.parents:
        parent = layout.segments.get(parent_id)
        if parent is None or segment.id not in parent.children or parent_id >= segment.id:
            wrong.append(f"its parent {parent_id} does not list it as a child, or is younger")
    return [f"segment {segment.id}: {what}" for what in wrong]


def _wrong_intent(layout: Layout, intent: Intent) -> list[str]:
    wrong = []
    parents = [layout.segments[i] for i in intent.parents if i in layout.segments]
    if len(parents) != len(intent.parents) or not parents:
        return ["intent: some of its parents do not exist"]
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
        wrong.append("intent: its children do not cover its parents' hash ranges")
    return wrong


def _wrong_ranges(ranges: list[HashRange]) -> list[str]:
    """Describe why these ranges, in order, do not divide the hash space exactly; empty if they do."""
    bounds = [-1, *(bound for hash_range in ranges for bound in hash_range), HASH_MAX + 1]
    gaps_closed = all(end + 1 == start for end, start in zip(bounds[::2], bounds[1::2], strict=True))
    upwards = all(hash_range.start <= hash_range.end for hash_range in ranges)
    return [] if gaps_closed and upwards else [f"ranges {[tuple(r) for r in ranges]} do not divide the hash space"]
