"""The page about scale says what its script computes, and the script computes what the page says."""

import re

import pytest

from scripts.scale import MEASURED, PAGE, Size, limits, main, memory_gib, needs, page

SMALL = Size(brokers=10, segments=1_000, transactions=1_000)


def test_the_page_is_what_the_script_writes() -> None:
    """A cost that is measured anew changes both: run `scripts/scale.py`."""
    assert PAGE.read_text("utf-8") == page()
    assert main(["--check"]) == 0


def test_every_cost_names_its_measurement() -> None:
    """Each row of the table says where the figure comes from: a script that exists, or a setting."""
    for cost in MEASURED:
        assert cost.source in page()
        for script in re.findall(r"`(scripts/\w+\.py)`", cost.source):
            assert (PAGE.parents[1] / script).is_file()
        for heading in re.findall(r"performance\.md#([\w-]+)", cost.source):
            assert heading in headings(), heading


def headings() -> set[str]:
    """The anchors of the headings in docs/performance.md."""
    lines = PAGE.with_name("performance.md").read_text("utf-8").splitlines()
    texts = [line.lstrip("# ") for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in texts}


def test_needs_grow_with_the_transactions() -> None:
    """The model is linear, and the largest need comes first."""
    ten_times = SMALL._replace(transactions=10_000)
    for small, large in zip(needs(MEASURED, SMALL), needs(MEASURED, ten_times), strict=True):
        assert (small.what, small.unit) == (large.what, large.unit)
        assert large.times == pytest.approx(10 * small.times)
    times = [need.times for need in needs(MEASURED, SMALL)]
    assert times == sorted(times, reverse=True)


def test_at_its_limit_a_resource_is_used_up() -> None:
    """Limits and needs agree."""
    name = "the controller of the embedded metadata"
    at_limit = SMALL._replace(transactions=round(limits(MEASURED, SMALL)[name]))
    (need,) = [need for need in needs(MEASURED, at_limit) if need.what == name]
    assert need.times == pytest.approx(1, rel=0.01)


def test_more_brokers_carry_no_more_transactions() -> None:
    """All of them follow every change set, however many there are."""
    few, many = (limits(MEASURED, SMALL._replace(brokers=brokers)) for brokers in (10, 1_000))
    assert many["one etcd"] == few["one etcd"]
    assert many["one process of each broker"] < 2 * few["one process of each broker"]
    assert memory_gib(MEASURED, SMALL)["its own loaded segments"] > 0
