"""The documentation site: it has every page, and links lead there."""

from typing import Final

import pytest

from scripts.docs_site import _LINK, COMMANDS, relink, site_paths
from scripts.requirements import ROOT

PATHS: Final = {
    "README.md": "index.md",
    "SECURITY.md": "SECURITY.md",
    "docs/design.md": "design.md",
    "docs/how-to/run.md": "how-to/run.md",
    "docs/commit.svg": "commit.svg",
    "examples/flights/README.md": "examples/flights/README.md",
}


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "(docs/design.md)", "(design.md)"),
        ("README.md", "(docs/design.md#topics)", "(design.md#topics)"),
        ("docs/design.md", "(../SECURITY.md)", "(SECURITY.md)"),
        ("docs/how-to/run.md", "(../../SECURITY.md)", "(../SECURITY.md)"),
        ("docs/how-to/run.md", "(../../README.md)", "(../index.md)"),
        ("docs/how-to/run.md", "(../reference/command-line.md#x)", "(../reference/command-line.md#x)"),
        ("examples/flights/README.md", "(../../docs/commit.svg)", "(../../commit.svg)"),
        ("docs/design.md", "(https://example.org/a.md)", "(https://example.org/a.md)"),
        ("docs/design.md", "(#topics)", "(#topics)"),
        ("docs/design.md", "(no-such.md)", "(no-such.md)"),
    ],
)
def test_links_lead_to_the_pages_of_the_site(source: str, link: str, expected: str) -> None:
    assert relink(f"see [it]{link}, there", source, PATHS) == f"see [it]{expected}, there"


def test_every_page_of_the_repository_is_on_the_site_and_in_its_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {place for source, place in site_paths().items() if source.endswith(".md")}
    assert {page for page in pages if f" {page}\n" not in navigation} == set()
    assert all((ROOT / source).is_file() for source in site_paths())


def test_no_link_between_pages_is_broken() -> None:
    paths = site_paths()
    for source in paths:
        if source.endswith(".md"):
            for link in _LINK.finditer((ROOT / source).read_text(encoding="utf-8")):
                target = (ROOT / source).parent / link["target"]
                assert target.exists() or target.as_posix().endswith(COMMANDS), f"{source} links to {link['target']}"


def test_two_files_never_share_a_place() -> None:
    places = list(site_paths().values())
    assert len(places) == len(set(places))
