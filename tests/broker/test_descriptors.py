"""How many files each part of the broker may open."""

import resource

import pytest

from broker.descriptors import CONNECTIONS_MIN, RESERVED, WANTED, TooFewDescriptors, connections_possible


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to"),
    [
        (1_024, 4_096, 4_096),
        (1_024, 1_000_000, WANTED),
        (1_024, resource.RLIM_INFINITY, WANTED),
        (8_192, 8_192, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_limit_is_raised_and_clients_get_what_is_not_reserved(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised_to: int | None
) -> None:
    """E9: clients cannot take the descriptors that ledgers need."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    allowed = WANTED if soft == resource.RLIM_INFINITY else (raised_to or soft)
    assert connections_possible() == allowed - RESERVED
    assert asked == ([] if raised_to is None else [(raised_to, hard)])


def test_a_broker_that_may_hardly_open_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """E9: the error says what to do, instead of a later failure."""
    limit = RESERVED + CONNECTIONS_MIN - 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    with pytest.raises(TooFewDescriptors, match=f"may open {limit} files .*ulimit -n"):
        connections_possible()
