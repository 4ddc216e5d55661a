"""The documentation's list of differences from Kafka is the one that the run expects, and its tests exist."""

import re
from pathlib import Path

from tests.interop.kafka.kafka_differences import DIFFERENCES

ROOT = Path(__file__).parents[2]


def test_the_page_lists_what_the_run_expects_to_fail() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    listed = page.partition("### Where Apache Kafka does otherwise")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(test_\w+)`", listed)) == DIFFERENCES.keys()


def test_every_test_that_may_fail_is_there() -> None:
    folder = ROOT / "tests" / "interop" / "kafka"
    stories = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    assert set(re.findall(r"^def (test_\w+)\(", stories, re.MULTILINE)) >= DIFFERENCES.keys()
