"""Hypothesis strategies for layouts of scalable topics that a controller can produce.

    @given(layouts())            any layout that some sequence of splits, merges, prunes and subscriptions leads to
    @given(histories())          such a sequence, each layout on the way included

A history may contain moves that the layout refuses. They add no layout.
"""

from hypothesis import strategies as st

from broker.errors import LayoutError, SubscriptionExists, SubscriptionNotFound
from broker.layouts.layout import Layout, create
from broker.layouts.parts import Intent, LayoutSubscription, StartPosition, SubscriptionKind

NOW_MS = 1_795_212_052_776

_MOVES = [
    "split",
    "merge",
    "finish",
    "finish",
    "seal",
    "prune",
    "prune",
    "subscribe",
    "unsubscribe",
    "confirm",
    "ending",
    "forget",
]


@st.composite
def histories(draw: st.DrawFn) -> list[Layout]:
    """The layouts of a topic from its creation on, each one move after the one before."""
    steps = [create(draw(st.integers(1, 8)), NOW_MS, creation_id="c-1", properties=draw(_PROPERTIES))]
    for kind, a, b in draw(
        st.lists(st.tuples(st.sampled_from(_MOVES), st.integers(0, 30), st.integers(0, 30)), max_size=60)
    ):
        try:
            steps.append(_move(steps[-1], kind, a, b))
        except (LayoutError, SubscriptionExists, SubscriptionNotFound):
            continue
    return steps


def layouts() -> st.SearchStrategy[Layout]:
    """The last layout of a history."""
    return histories().map(lambda steps: steps[-1])


_PROPERTIES = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


def _move(layout: Layout, kind: str, a: int, b: int) -> Layout:
    match kind:
        case "split":
            return layout.begin_split(a)
        case "merge":
            # Chosen by place, so that neighbours are common; a place too far right wraps and is refused.
            active = layout.active()
            return layout.begin_merge(active[a % len(active)].id, active[(a + 1) % len(active)].id)
        case "finish":
            return layout.finish()
        case "seal":
            return layout.replace_segments(layout.intent or Intent((), ()), NOW_MS + b)
        case "prune":
            return layout.prune(a)
        case "forget":
            return layout.forget(a)
        case "confirm":
            return layout.confirm_subscription(f"s-{a % 3}")
        case "ending":
            return layout.begin_removing_subscription(f"s-{a % 3}")
        case "subscribe":
            kind_of = list(SubscriptionKind)[a % 2]
            start = list(StartPosition)[b % 2]
            return layout.add_subscription(
                f"s-{a % 3}", LayoutSubscription(kind_of, f"id-{b}", start, NOW_MS + b, is_creating=True)
            )
        case _:
            return layout.remove_subscription(f"s-{a % 3}")
