"""A bad minute for a cluster of real processes on each metadata store (scripts/chaos.py, docs/chaos.md)."""

from pathlib import Path

import pytest

from tests.support.chaos.acts import Store, chosen, draw
from tests.support.chaos.story import run

SEED = 22
SECONDS = 15.0
"""Of acts. The start, the healing and the judgement take about as long again."""
pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


@pytest.mark.parametrize("store", list(Store))
async def test_a_cluster_keeps_its_promises_on_a_bad_day(tmp_path: Path, store: Store) -> None:
    """C12, C21, D1, D8, D12, E4, E14: committed exactly once, in order per key, and everything heals."""
    acts = draw(SEED, SECONDS, chosen(store))
    report = await run(tmp_path, store, acts, seed=SEED, with_spark=False)
    assert report.complaints == []
    assert report.acts.total() == len(acts) > 5
