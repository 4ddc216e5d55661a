"""Gather the pages of the documentation site in build/docs; `make docs` then lets mkdocs build it.

The repository's pages link to each other as files of the checkout, so a code host shows them as they are. The site
has one folder for all of them, so links are rewritten to the places that pages have there. Three pages are generated:
the command line's reference, the requirements with the tests that show them, and the news since the last release.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.requirements import ROOT, as_markdown, read_coverage

STAGE: Final = ROOT / "build" / "docs"
COMMANDS: Final = "reference/command-line.md"

_OUTSIDE_DOCS: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
_EXAMPLES: Final = "examples/flights"
_LINK: Final = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s:]+)(?P<after>#[^)]*)?\)")
_RELEASES: Final = "<!-- towncrier release notes start -->\n"
"""The line of CHANGELOG.md below which towncrier inserts a release."""


def site_paths(root: Path = ROOT) -> dict[str, str]:
    """Return the site's path for each file of the repository that the site shows."""
    paths = {"README.md": "index.md", **{name: name for name in _OUTSIDE_DOCS}}
    for path in sorted((root / "docs").rglob("*")):
        name = path.relative_to(root / "docs").as_posix()
        if path.is_file() and not name.startswith("news/"):
            paths[f"docs/{name}"] = name
    for path in sorted((root / _EXAMPLES).rglob("*")):
        if path.suffix in (".md", ".py"):
            name = path.relative_to(root).as_posix()
            paths[name] = name
    return paths


def relink(text: str, source: str, paths: Mapping[str, str]) -> str:
    """Return the text of the page `source`, with its links to other pages rewritten for the site."""
    here = PurePosixPath(paths[source]).parent

    def place(match: re.Match[str]) -> str:
        meant = os.path.normpath((PurePosixPath(source).parent / match["target"]).as_posix())
        if meant == COMMANDS or meant == f"docs/{COMMANDS}":
            target = COMMANDS
        elif meant in paths:
            target = paths[meant]
        else:
            return match[0]
        return f"{match['before']}{os.path.relpath(target, here)}{match['after'] or ''})"

    return _LINK.sub(place, text)


def stage() -> None:
    """Write build/docs from scratch."""
    shutil.rmtree(STAGE, ignore_errors=True)
    paths = site_paths()
    for source, place in paths.items():
        target = STAGE / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if not source.endswith(".md"):
            shutil.copyfile(ROOT / source, target)
            continue
        text = (ROOT / source).read_text(encoding="utf-8")
        if source == "docs/requirements.md":
            text = _requirements(text)
        elif source == "CHANGELOG.md":
            text = _changelog(text)
        target.write_text(relink(text, source, paths), encoding="utf-8")
    (STAGE / COMMANDS).write_text(_output("typer", "tidewire.cli.app", "utils", "docs", "--name", "tidewire"), "utf-8")


def _requirements(text: str) -> str:
    """Return the page with its introduction, and a table instead of its lines."""
    _title, *lines = as_markdown(read_coverage(ROOT))
    return "\n".join([text.partition("\n## ")[0], *lines, ""])


def _changelog(text: str) -> str:
    """Return the changelog with the news that no release has yet."""
    before, mark, after = text.partition(_RELEASES)
    if not mark:
        raise ValueError(f"CHANGELOG.md lacks the line {_RELEASES.strip()}. Put it above the newest release.")
    return before + _output("towncrier", "build", "--draft", "--version", "Unreleased") + after


def _output(module: str, *arguments: str) -> str:
    """Return the output of a Python tool."""
    ended = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"`{module} {' '.join(arguments)}` failed:\n{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    stage()
