"""The broker keeps its promises through many kills, with transactions, splits and merges (scripts/kill_loop.py)."""

from pathlib import Path

import pytest

from scripts import kill_loop


async def test_five_kills_break_no_promise(tmp_path: Path) -> None:
    """D1, D3, D8, D12, T20, T23, T33: no position is used twice, either; a small run with fixed moments."""
    report = await kill_loop.run(kills=5, seed=21, folder=tmp_path)
    assert report.complaints == []
    assert report.kill_count == 5


@pytest.mark.thorough
@pytest.mark.kills
@pytest.mark.parametrize("seed", range(1, 5))
async def test_fifty_kills_break_no_promise(tmp_path: Path, seed: int) -> None:
    """D1, D3, D8, D10, D12, T20, T23, T33: in starts, recoveries, splits and merges, and under load."""
    report = await kill_loop.run(kills=50, seed=seed, folder=tmp_path)
    assert report.complaints == []
    assert report.kill_count == 50
