"""Comments cite docs/design.md by heading, so the cited headings must exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("broker", "dispatch", "docs", "scripts", "storage", "tests", "tidewire", "txn")

CITATION: Final = re.compile(r"docs/design\.md#([\w-]+)")
HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in HEADING.findall(text)}


def citations() -> Iterator[tuple[Path, str]]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md") and path != Path(__file__):
                for anchor in CITATION.findall(path.read_text(encoding="utf-8")):
                    yield path.relative_to(ROOT), anchor


def test_every_citation_of_the_design_leads_to_a_heading() -> None:
    known = anchors((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))
    cited = list(citations())
    assert len(cited) > 20
    assert [(path, anchor) for path, anchor in cited if anchor not in known] == []


def test_anchors_are_what_headings_become() -> None:
    assert anchors("# Design\n\n## The path of a message\n### A, b\n") == {"design", "the-path-of-a-message", "a-b"}
