"""The documentation's list of differences from Pulsar is the one that the run expects, and its tests exist."""

import re
from pathlib import Path

from tests.scenarios.client.pulsar_differences import DIFFERENCES

ROOT = Path(__file__).parents[2]


def test_the_page_lists_what_the_run_expects_to_fail() -> None:
    page = (ROOT / "docs" / "python-against-pulsar.md").read_text(encoding="utf-8")
    fails = page.partition("## What fails")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(test_\w+)`([^|]*)\|", fails, re.MULTILINE)
    assert [name for name, _ in rows] == list(DIFFERENCES)
    # What does not always fail says how often it does.
    assert {name for name, how_often in rows if how_often.strip()} == {
        name for name, difference in DIFFERENCES.items() if not difference.always
    }


def test_every_test_that_is_expected_to_fail_is_there() -> None:
    folder = ROOT / "tests" / "scenarios" / "client"
    stories = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    defined = set(re.findall(r"^(?:async )?def (test_\w+)\(", stories, re.MULTILINE))
    assert defined >= DIFFERENCES.keys()
