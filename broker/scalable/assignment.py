"""Which consumer of an ordered subscription gets which segment.

Decisions, all pure. `eligible` says which segments may be read at all: a child waits until everything older that held
its keys is drained, so that a key's messages keep their order across splits and merges (docs/design.md#topics).
`assign` divides them: each to exactly one consumer, evenly, moving as few as possible from where they were.
`assign_unordered` is for consumers that keep their positions by themselves, of whom nobody knows what they have
drained.

They depend on nothing but their arguments, so any controller that knows the same reaches the same answer.
"""

from collections.abc import Collection, Iterable, Mapping

from broker.layouts.layout import Layout


def eligible(layout: Layout, drained: Collection[int]) -> frozenset[int]:
    """The segments that a subscription's consumers read now: not drained, while all their ancestors are.

    Ancestors, not just parents: an empty sealed segment counts as drained from the start, though its own parent may
    still hold messages of the same keys. A pruned ancestor was drained by every subscription.

    Args:
        layout: the topic's.
        drained: sealed segments at whose end the subscription's durable mark-delete stands.
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
    """Divide `segments` among `consumers`: each to exactly one, the numbers differing by at most one.

    Those who are `away` keep what they had and get no more; among the others the rest is divided.

    As few segments as possible leave the consumer that had them; if several ways move as few, the order of names and
    ids decides. A consumer that is no longer there gives up all it had.

    Args:
        segments: the ids to divide, as `eligible` gives them.
        consumers: the names of those who share them, in any order.
        previous: who had what until now; may name consumers and segments that are gone.
        away: those of the consumers that are not here at the moment.

    Returns:
        An entry for every consumer, empty for those that get nothing. If nobody is here, some segments may be in none.
    """
    unassigned = set(segments)
    kept: dict[str, list[int]] = {}
    # Who is away first: should two be said to have had one segment, only the one who is here can be told.
    for consumer in sorted(set(consumers), key=lambda name: (name not in away, name)):
        had = sorted(unassigned.intersection(previous.get(consumer, ())))
        unassigned.difference_update(had)
        kept[consumer] = had
    reserved = {consumer: frozenset(kept.pop(consumer)) for consumer in tuple(kept) if consumer in away}
    if not kept:
        return reserved

    total = len(unassigned) + sum(map(len, kept.values()))
    fewest, consumers_with_one_more = divmod(total, len(kept))
    # Whoever has most gets the larger shares: a larger share saves a move only where there is something to keep.
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
    """Divide all segments among consumers whose positions nobody else knows.

    The active ones are divided as by `assign`. A sealed one stays with who reads it for as long as he is there, though
    that may be uneven: whoever got it instead would read it from where he was told to begin, and nothing is added to
    it any more. One that nobody has goes to who has the fewest of these.

    Args:
        layout: the topic's.
        consumers: as for `assign`.
        previous: as for `assign`.
        away: as for `assign`.

    Returns:
        As `assign`.
    """
    active = assign((segment.id for segment in layout.active()), consumers, previous, away)
    sealed = {segment.id for segment in layout.segments.values() if not segment.is_active}
    kept = {name: sealed.intersection(previous.get(name, ())) for name in sorted(active)}
    here = [kept[name] for name in kept if name not in away]
    if here:
        for segment_id in sorted(sealed.difference(*kept.values())):
            min(here, key=len).add(segment_id)
    return {name: segments | kept[name] for name, segments in active.items()}
