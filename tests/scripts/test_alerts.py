"""The alert rules, their tests and their page belong together."""

import json
import re
from pathlib import Path
from typing import Final

from tests.scripts.test_pages import ROOT

OPERATIONS: Final = ROOT / "docs" / "operations"
RULES: Final = ROOT / "tests" / "interop" / "prometheus" / "alerts_test.yml"
METRIC: Final = re.compile(r"\b(?:tidewire|pulsar)_[a-z_]+")


def read(path: Path) -> str:
    return path.read_text("utf-8")


def alerts() -> list[str]:
    found = re.findall(r"- alert: (\w+)", read(OPERATIONS / "alerts.yml"))
    assert len(found) > 10
    return found


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    assert re.findall(r"^## (\w+)$", read(OPERATIONS / "alerts.md"), re.MULTILINE) == alerts()


def test_each_alert_is_tested_when_it_fires_and_when_it_does_not() -> None:
    tested = re.findall(r"- name: (\w+) (fires|is quiet)", read(RULES))
    assert tested == [(name, kind) for name in alerts() for kind in ("fires", "is quiet")]


def test_alerts_that_a_section_names_are_there() -> None:
    named = set(re.findall(r"\bTidewire[A-Z]\w+", read(OPERATIONS / "alerts.md")))
    assert named == set(alerts())


def test_rules_and_dashboard_use_metrics_that_are_documented() -> None:
    dashboard = json.loads(read(OPERATIONS / "dashboard.json"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    used = {name for text in (read(OPERATIONS / "alerts.yml"), *queries) for name in METRIC.findall(text)}
    assert len(used) > 20
    page = set(METRIC.findall(read(OPERATIONS / "metrics.md")))
    assert sorted(name for name in used if re.sub("_(bucket|count|sum)$", "", name) not in page) == []
