"""Lists which test shows which requirement, and which requirements are still open.

Requirements are the items of docs/requirements.md that begin with a number such as T14. A test names the requirements
that it shows at the start of its docstring (`T14, D3: an open transaction ...`). A test in another language does so at
the start of a comment line. The table is computed each time and not stored, so it cannot be out of date.

The exit status is 1 if a test names a number that does not exist, or writes numbers in another form. With --require it
is also 1 if no test shows a requirement with one of the given letters.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

_REQUIREMENT = re.compile(r"(?:- )?(?P<number>(?P<letter>[A-Z])[0-9]+) (?P<text>\S.*)")
_HEADING = re.compile(r"## (?P<letter>[A-Z]) — (?P<title>\S.*)")
_NUMBERS = re.compile(r"(?P<numbers>[A-Z][0-9]+(?:, ?[A-Z][0-9]+)*):")
_COMMENT = re.compile(r"\s*(?:///?|/\*\*?|\*)\s*(?P<text>\S.*)")
_OTHER_LANGUAGES = ("*.java", "*.scala", "*.go", "*.js", "*.ts", "*.rs", "*.c", "*.cc")


class Requirement(NamedTuple):
    """One testable sentence."""

    number: str
    letter: str
    text: str


class Claim(NamedTuple):
    """A test's claim that it shows a requirement."""

    number: str
    test: str
    """The test in pytest's form (`path::name`), or `path:line` in another language."""


@dataclass(slots=True)
class Coverage:
    """All requirements in the document's order, with the tests that show them."""

    titles: dict[str, str]
    requirements: list[Requirement]
    tests: dict[str, list[str]] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def open(self, letters: str | None = None) -> list[Requirement]:
        """Return the requirements that no test shows: all, or those with the given letters."""
        return [
            requirement
            for requirement in self.requirements
            if not self.tests.get(requirement.number) and (letters is None or requirement.letter in letters)
        ]


def read_requirements(text: str) -> tuple[dict[str, str], list[Requirement]]:
    """Parse the document's text into titles by letter, and requirements."""
    titles: dict[str, str] = {}
    requirements: list[Requirement] = []
    for line in re.sub(r"\n  +(?=\S)", " ", text).splitlines():
        if heading := _HEADING.fullmatch(line):
            titles[heading["letter"]] = heading["title"]
        elif match := _REQUIREMENT.fullmatch(line):
            requirements.append(Requirement(match["number"], match["letter"], match["text"]))
    return titles, requirements


def claims_of_python(path: str, source: str, letters: str) -> Iterator[Claim | str]:
    """Yield the claims in one test file. A text instead of a claim describes a mistake."""
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            docstring = ast.get_docstring(node) or ""
            test = f"{path}::{node.name}"
            claims = list(_claims(docstring, test))
            yield from claims
            if not claims and re.match(rf"[{letters}][0-9]+\b", docstring):
                first = docstring.splitlines()[0]
                yield f"{test} begins with a requirement's number, but not as in `T14, D3: ...`: {first}"


def claims_of_comments(path: str, source: str) -> Iterator[Claim]:
    """Yield the claims in the comments of a file in another language. Other lines are not claims."""
    for count, line in enumerate(source.splitlines(), start=1):
        if match := _COMMENT.match(line):
            yield from _claims(match["text"], f"{path}:{count}")


def read_coverage(root: Path) -> Coverage:
    """Read the document and every test below `root`."""
    titles, requirements = read_requirements((root / "docs" / "requirements.md").read_text(encoding="utf-8"))
    coverage = Coverage(titles, requirements, {requirement.number: [] for requirement in requirements})
    letters = "".join(titles)
    found: list[Claim | str] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        found += claims_of_python(str(path.relative_to(root)), path.read_text(encoding="utf-8"), letters)
    for pattern in _OTHER_LANGUAGES:
        for path in sorted((root / "tests").rglob(pattern)):
            found += claims_of_comments(str(path.relative_to(root)), path.read_text(encoding="utf-8"))
    for claim in found:
        if isinstance(claim, str):
            coverage.mistakes.append(claim)
        elif claim.number not in coverage.tests:
            coverage.mistakes.append(f"{claim.test} names {claim.number}, which is not a requirement")
        elif claim.test not in coverage.tests[claim.number]:
            coverage.tests[claim.number].append(claim.test)
    return coverage


def as_text(coverage: Coverage, *, only_open: bool = False) -> Iterator[str]:
    """Yield lines for a terminal."""
    for letter, title in coverage.titles.items():
        mine = [requirement for requirement in coverage.requirements if requirement.letter == letter]
        holes = coverage.open(letter)
        yield f"{letter} — {title}: {len(mine) - len(holes)} of {len(mine)} shown"
        for requirement in mine:
            tests = coverage.tests[requirement.number]
            if not tests:
                yield f"  {requirement.number:<4} open: {requirement.text}"
            elif not only_open:
                yield f"  {requirement.number:<4} {tests[0]}"
                yield from (f"       {test}" for test in tests[1:])
    yield f"{len(coverage.requirements) - len(coverage.open())} of {len(coverage.requirements)} requirements shown"


def as_markdown(coverage: Coverage) -> Iterator[str]:
    """Yield the lines of a page with one table for each letter."""
    yield "# Requirements and the tests that show them"
    for letter, title in coverage.titles.items():
        yield from ("", f"## {letter} — {title}", "", "| | requirement | shown by |", "|---|---|---|")
        for requirement in coverage.requirements:
            if requirement.letter == letter:
                tests = "<br>".join(f"`{test}`" for test in coverage.tests[requirement.number]) or "open"
                text = requirement.text.replace("|", "\\|").replace("<", "&lt;")
                yield f"| {requirement.number} | {text} | {tests} |"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Print the requested list. Return the exit status."""
    parser = argparse.ArgumentParser(description="Print which test shows which requirement, and which are still open.")
    parser.add_argument("--open", action="store_true", help="list only open requirements")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown page instead")
    parser.add_argument(
        "--require", metavar="R,M", default="", help="fail if one of these letters has open requirements"
    )
    options = parser.parse_args(arguments)
    coverage = read_coverage(root)
    letters = options.require.replace(",", "").replace(" ", "")
    unknown = sorted(set(letters) - coverage.titles.keys())
    if unknown:
        parser.error(f"there are no letters {', '.join(unknown)}; known are {', '.join(coverage.titles)}")

    print("\n".join(as_markdown(coverage) if options.markdown else as_text(coverage, only_open=options.open)))
    for mistake in coverage.mistakes:
        print(mistake, file=sys.stderr)
    holes = coverage.open(letters)
    if holes:
        numbers = ", ".join(requirement.number for requirement in holes)
        print(f"no test shows these requirements: {numbers}", file=sys.stderr)
    return 1 if coverage.mistakes or holes else 0


def _claims(text: str, test: str) -> Iterator[Claim]:
    if match := _NUMBERS.match(text):
        yield from (Claim(number.strip(), test) for number in match["numbers"].split(","))


if __name__ == "__main__":
    sys.exit(main())
