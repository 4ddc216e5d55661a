"""Pages name files and tests of the project, so these must exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FILE: Final = re.compile(
    r"`((?:broker|dispatch|examples|scripts|storage|tests|tidewire|txn)/[\w./-]+\.(?:py|sh|proto))"
)
TEST: Final = re.compile(r"`([\w/]+\.py)::(\w+)`")
MUTANTS: Final = "docs/mutants.md"
ARCHITECTURE: Final = "ARCHITECTURE.md"
LINE_MAX: Final = 100
MODULE: Final = re.compile(r"`([\w./-]+\.py)\b")
SYMBOL: Final = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def pages() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"))
    yield from (path for path in (ROOT / "docs").rglob("*.md") if "news" not in path.parts)


def test_files_that_pages_name_are_there() -> None:
    named = [(page.relative_to(ROOT), name) for page in pages() for name in FILE.findall(page.read_text("utf-8"))]
    assert len(named) > 100
    folders = {MUTANTS: (ROOT, ROOT / "tests")}
    missing = [
        (str(page), name)
        for page, name in named
        if not any((folder / name).is_file() for folder in folders.get(str(page), (ROOT,)))
    ]
    assert missing == []


def test_tests_that_catch_planted_bugs_are_there() -> None:
    named = TEST.findall((ROOT / MUTANTS).read_text("utf-8"))
    assert len(named) > 80
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^ *(?:async )?def {name}\(", (ROOT / "tests" / file).read_text("utf-8"), re.MULTILINE)
    ]
    assert missing == []


def test_lines_of_the_architecture_are_short() -> None:
    lines = (ROOT / ARCHITECTURE).read_text("utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > LINE_MAX] == []


def test_the_architecture_names_modules_from_the_root() -> None:
    named = set(MODULE.findall((ROOT / ARCHITECTURE).read_text("utf-8")))
    assert len(named) > 100
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_symbols_that_the_architecture_names_are_there() -> None:
    named = SYMBOL.findall((ROOT / ARCHITECTURE).read_text("utf-8"))
    assert len(named) > 10
    missing = [
        f"{file}:{symbol}"
        for file, symbol in named
        for part in symbol.split(".")
        if not re.search(
            rf"^ *(?:(?:async )?def {part}\b|class {part}\b|{part}\b.* = )",
            (ROOT / file).read_text("utf-8"),
            re.MULTILINE,
        )
    ]
    assert missing == []
