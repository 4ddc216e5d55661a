"""Assigns the segments of an ordered subscription to its consumers. Pure.

`eligible` says which segments may be read. A child waits until all older segments of its keys are drained, so that the
messages of a key keep their order across splits and merges (docs/design.md#topics). `assign` divides the eligible
segments evenly. Each goes to exactly one consumer, and as few as possible move. `assign_unordered` is for consumers
that keep their positions themselves, so the broker does not know what they have drained.

The results depend only on the arguments. So every controller with the same knowledge makes the same assignment.
"""

from collections.abc import Collection, Iterable, Mapping

from broker.layouts.layout import Layout


def eligible(layout: Layout, drained: Collection[int]) -> frozenset[int]:
    """Return the segments that a subscription's consumers may read now: not drained, but with drained ancestors.

    All ancestors count, not only parents. An empty sealed segment counts as drained from the start, but its parent may
    still hold messages of the same keys. A pruned ancestor was drained by every subscription.

    Args:
        layout: the topic's layout.
        drained: sealed segments whose end the subscription's durable mark-delete has reached.
    """
    finished: dict[int, bool] = {}
    # A segment's id is higher than its parents', so one pass in order of ids sees parents first.
    for segment_id in sorted(layout.segments):
        segment = layout.segments[segment_id]
        passed = segment_id in drained and not segment.is_active
        finished[segment_id] = passed and all(finished[parent] for parent in segment.parents)
    return frozenset(
        segment_id
        for segment_id, segment in layout.segments.items()
        if not finished[segment_id]
        and (segment.is_active or segment_id not in drained)
        and all(finished[parent] for parent in segment.parents)
    )


def assign(
    segments: Iterable[int],
    consumers: Iterable[str],
    previous: Mapping[str, Collection[int]],
    away: Collection[str] = (),
) -> dict[str, frozenset[int]]:
    """Divide `segments` among `consumers`: each to exactly one, with numbers that differ by at most one.

    Consumers in `away` keep their segments and get no more. The rest is divided among the others. As few segments as
    possible move. If several assignments move equally few, the order of names and ids decides. A consumer that has left
    loses all its segments.

    Args:
        segments: the ids to divide, from `eligible`.
        consumers: the names of the consumers, in any order.
        previous: the last assignment; it may contain consumers and segments that no longer exist.
        away: the disconnected ones among the consumers.

    Returns:
        An entry for every consumer; it may be empty. If all consumers are away, some segments may be unassigned.
    """
    unassigned = set(segments)
    kept: dict[str, list[int]] = {}
    # Consumers that are away come first: if two had the same segment, only the connected one can be told to lose it.
    for consumer in sorted(set(consumers), key=lambda name: (name not in away, name)):
        had = sorted(unassigned.intersection(previous.get(consumer, ())))
        unassigned.difference_update(had)
        kept[consumer] = had
    reserved = {consumer: frozenset(kept.pop(consumer)) for consumer in tuple(kept) if consumer in away}
    if not kept:
        return reserved

    total = len(unassigned) + sum(map(len, kept.values()))
    fewest, consumers_with_one_more = divmod(total, len(kept))
    # The consumers that keep most get the larger shares, because only they save a move by it.
    ranked = sorted(kept, key=lambda name: (-len(kept[name]), name))
    shares = {consumer: fewest + (rank < consumers_with_one_more) for rank, consumer in enumerate(ranked)}
    for consumer, share in shares.items():
        unassigned.update(kept[consumer][share:])
        del kept[consumer][share:]
    waiting = sorted(unassigned)
    for consumer, share in shares.items():
        missing = share - len(kept[consumer])
        kept[consumer] += waiting[:missing]
        del waiting[:missing]
    return reserved | {consumer: frozenset(had) for consumer, had in kept.items()}


def assign_unordered(
    layout: Layout, consumers: Iterable[str], previous: Mapping[str, Collection[int]], away: Collection[str] = ()
) -> dict[str, frozenset[int]]:
    """Divide all segments among consumers that keep their positions themselves.

    Active segments are divided as in `assign`. A sealed segment stays with its consumer for as long as that consumer is
    in the group, even if the shares become uneven: another consumer would begin it at its own start position. An
    unassigned sealed segment goes to the consumer with the fewest sealed segments.

    Args:
        layout: the topic's layout.
        consumers: see `assign`.
        previous: see `assign`.
        away: see `assign`.

    Returns:
        See `assign`.
    """
    active = assign((segment.id for segment in layout.active()), consumers, previous, away)
    sealed = {segment.id for segment in layout.segments.values() if not segment.is_active}
    kept = {name: sealed.intersection(previous.get(name, ())) for name in sorted(active)}
    here = [kept[name] for name in kept if name not in away]
    if here:
        for segment_id in sorted(sealed.difference(*kept.values())):
            min(here, key=len).add(segment_id)
    return {name: segments | kept[name] for name, segments in active.items()}
