"""Finds circles in a directed graph: its strongly connected components of more than one node (Tarjan). Pure."""

from collections.abc import Iterable, Iterator, Mapping


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the nodes of each component with a circle, sorted. A node that points at itself is none."""
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lows: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in graph:
        if root in numbers:
            continue
        # An own stack of calls, because a history is deeper than Python's.
        calls: list[tuple[str, Iterator[str]]] = []

        def enter(node: str, calls: list[tuple[str, Iterator[str]]] = calls) -> None:
            numbers[node] = lows[node] = len(numbers)
            stack.append(node)
            on_stack.add(node)
            calls.append((node, iter(graph.get(node, ()))))

        enter(root)
        while calls:
            node, others = calls[-1]
            other = next(others, None)
            if other is None:
                calls.pop()
                if calls:
                    parent = calls[-1][0]
                    lows[parent] = min(lows[parent], lows[node])
                if lows[node] == numbers[node]:
                    component: list[str] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        found.append(sorted(component))
            elif other not in numbers:
                enter(other)
            elif other in on_stack:
                lows[node] = min(lows[node], numbers[other])
    return found
