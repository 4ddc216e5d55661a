"""The page of bounds has the values of the code."""

import importlib
import re

from scripts.requirements import ROOT

ROW = re.compile(r"\| `(?P<file>[a-z_/]+)\.py:(?P<name>[A-Z_]+)` \| (?P<value>[0-9]+)(?: (?P<unit>KiB|MiB))? \|")
UNITS = {None: 1, "KiB": 1024, "MiB": 1024 * 1024}


def test_every_bound_on_the_page_is_the_one_in_the_code() -> None:
    """E9, E16: the code enforces the bounds on the page."""
    rows = ROW.findall((ROOT / "docs" / "bounds.md").read_text(encoding="utf-8"))
    assert len(rows) > 30
    for file, name, value, unit in rows:
        stated = int(value) * UNITS[unit or None]
        assert getattr(importlib.import_module(file.replace("/", ".")), name) == stated, f"{file}.py:{name}"


def test_no_row_of_the_page_is_overlooked() -> None:
    text = (ROOT / "docs" / "bounds.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| `", text, re.MULTILINE)) == len(ROW.findall(text))
