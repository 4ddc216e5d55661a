"""Stores whose process is killed (kill -9) under concurrent clients and watches; a short run and long ones."""

from pathlib import Path

import pytest

from tests.linearizability.big_sets import run_big_sets
from tests.linearizability.harness import Report, run
from tests.linearizability.subjects import SUBJECTS, cluster


def check(report: Report, kills: int) -> None:
    assert report.complaints == []
    assert report.verdict == "legal"
    assert report.kills.total() == kills
    # Watches of everything: a quick and a slow reader.
    assert all(sum(map(len, reading.sittings)) > kills for reading in report.ranges[:2])


@pytest.mark.parametrize(("store", "kills"), [("embedded", 8), ("etcd", 2)])
async def test_a_few_kills_break_no_promise(tmp_path: Path, store: str, kills: int) -> None:
    """M1, M2, M3, M5, M8, M9, M13, M14, M15, M22, M23: the answers are linearizable, and watches report everything."""
    with SUBJECTS[store](tmp_path) as subject:
        check(await run(subject, seed=3, kills=kills, calls=600), kills)


async def play_cluster(seed: int, kills: int, calls: int) -> None:
    async with cluster(seed) as subject:
        check(await run(subject, seed=seed, kills=kills, calls=calls), kills)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_cluster_whose_controller_stands_still_breaks_no_promise(seed: int) -> None:
    """M1, M2, M13, M14, M17, M20, M22, C4, C5, C6: calls and watches of controllers, followers and zombies."""
    await play_cluster(seed, kills=4, calls=600)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3, 9))
async def test_a_cluster_whose_controller_often_stands_still_breaks_no_promise(seed: int) -> None:
    """M1, M2, M13, M14, M17, M20, M22, C4, C5, C6: with snapshots and trims in between."""
    await play_cluster(seed, kills=25, calls=6_000)


@pytest.mark.thorough
@pytest.mark.kills
@pytest.mark.parametrize(
    ("store", "kills", "seed"), [*(("embedded", 150, seed) for seed in range(1, 6)), ("etcd", 25, 1), ("etcd", 25, 2)]
)
async def test_many_kills_break_no_promise(tmp_path: Path, store: str, kills: int, seed: int) -> None:
    """M1, M2, M3, M5, M8, M9, M13, M14, M15, M22, M23: in starts, recoveries and snapshots, and under load."""
    with SUBJECTS[store](tmp_path) as subject:
        check(await run(subject, seed=seed, kills=kills, calls=10_000), kills)


@pytest.mark.parametrize(("store", "kills"), [("embedded", 2), ("etcd", 1)])
async def test_a_writer_killed_in_a_large_change_set_leaves_all_of_it_or_nothing(
    tmp_path: Path, store: str, kills: int
) -> None:
    """R8, R13, R14, R17, M23, M24: 10,000 records (on etcd, its limit), sampled continuously and after kills."""
    with SUBJECTS[store](tmp_path) as subject:
        report = await run_big_sets(subject, seed=1, kills=kills)
    assert report.complaints == []
    assert report.kills == kills
    assert all(report.samples)


@pytest.mark.thorough
@pytest.mark.kills
@pytest.mark.parametrize(
    ("store", "kills", "seed"), [*(("embedded", 30, seed) for seed in range(1, 4)), ("etcd", 10, 1)]
)
async def test_many_kills_in_large_change_sets(tmp_path: Path, store: str, kills: int, seed: int) -> None:
    """R8, R13, R14, R17, R20, M23, M24: each is completely there or absent in every sample."""
    with SUBJECTS[store](tmp_path) as subject:
        report = await run_big_sets(subject, seed=seed, kills=kills)
    assert report.complaints == []
    assert report.kills == kills
