"""The script that says which test shows which requirement."""

from pathlib import Path

import pytest

from scripts.requirements import ROOT, as_markdown, as_text, main, read_coverage

DOCUMENT = """# Acceptance requirements

One testable sentence each. T1 in the middle of a line is no requirement.

## T — Coordinator
T1 Headers are changed by compare-and-set only.
T2 A final state | never changes.
## D — interleavings
D1 Nothing is lost.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "requirements.md").write_text(DOCUMENT, encoding="utf-8")
    (tmp_path / "tests" / "txn").mkdir(parents=True)
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    (project / "tests" / "txn" / name).write_text(text, encoding="utf-8")


def test_the_first_words_of_a_docstring_name_what_a_test_shows(project: Path) -> None:
    write(
        project, "test_a.py", 'async def test_one():\n    """T1, D1: both."""\n\ndef test_two():\n    """About T2."""\n'
    )
    write(project, "test_b.py", 'class TestIt:\n    def test_three(self):\n        """T1: again."""\n')
    write(project, "helper.py", 'def test_no():\n    """T2: not in a test file."""\n')

    coverage = read_coverage(project)

    assert coverage.tests == {
        "T1": ["tests/txn/test_a.py::test_one", "tests/txn/test_b.py::test_three"],
        "T2": [],
        "D1": ["tests/txn/test_a.py::test_one"],
    }
    assert [requirement.number for requirement in coverage.open()] == ["T2"]
    assert coverage.open("D") == []
    assert coverage.mistakes == []


def test_a_requirement_may_be_an_item_of_several_lines(project: Path) -> None:
    lines = "## T — One\n\n- T1 A header\n  of <txn> stays.\n- T2 It ends.\n\nNot T3.\n"
    (project / "docs" / "requirements.md").write_text(lines, encoding="utf-8")

    coverage = read_coverage(project)

    assert [(each.number, each.text) for each in coverage.requirements] == [
        ("T1", "A header of <txn> stays."),
        ("T2", "It ends."),
    ]
    assert "| T1 | A header of &lt;txn> stays. | open |" in list(as_markdown(coverage))


def test_comments_in_other_languages_count_too(project: Path) -> None:
    write(
        project,
        "Story.java",
        '/** T2: it stays. */\n// D1: one\n * T1, T2: two\nString s = "T1: no";\n// T1 is prose\n',
    )

    assert read_coverage(project).tests == {
        "T1": ["tests/txn/Story.java:3"],
        "T2": ["tests/txn/Story.java:1", "tests/txn/Story.java:3"],
        "D1": ["tests/txn/Story.java:2"],
    }


def test_a_number_that_is_no_requirement_is_a_mistake(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "test_a.py", 'def test_one():\n    """T9: what."""\n')

    assert main([], project) == 1
    assert "test_one names T9, which is not a requirement" in capsys.readouterr().err


@pytest.mark.parametrize("docstring", ["T1-T2: a range.", "T1 and T2: words.", "T1. No colon."])
def test_numbers_in_another_form_are_a_mistake(project: Path, docstring: str) -> None:
    write(project, "test_a.py", f'def test_one():\n    """{docstring}"""\n')
    assert "not as in" in read_coverage(project).mistakes[0]


def test_holes_fail_only_in_the_letters_that_are_required(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "test_a.py", 'def test_one():\n    """T1, T2: all."""\n')

    assert main([], project) == 0
    assert main(["--require", "T"], project) == 0
    assert main(["--require", "T,D"], project) == 1
    assert capsys.readouterr().err == "no test shows these requirements: D1\n"
    with pytest.raises(SystemExit):
        main(["--require", "X"], project)


def test_the_list_shows_tests_and_holes(project: Path) -> None:
    write(project, "test_a.py", 'def test_one():\n    """T1: one."""\n')
    write(project, "test_b.py", 'def test_two():\n    """T1: one."""\n')
    coverage = read_coverage(project)

    assert list(as_text(coverage)) == [
        "T — Coordinator: 1 of 2 shown",
        "  T1   tests/txn/test_a.py::test_one",
        "       tests/txn/test_b.py::test_two",
        "  T2   open: A final state | never changes.",
        "D — interleavings: 0 of 1 shown",
        "  D1   open: Nothing is lost.",
        "1 of 3 requirements shown",
    ]
    assert "  T1   tests/txn/test_a.py::test_one" not in as_text(coverage, only_open=True)
    page = list(as_markdown(coverage))
    assert "| T2 | A final state \\| never changes. | open |" in page
    assert any(line.startswith("| T1 |") and line.count("`tests/") == 2 for line in page)


def test_this_projects_tests_name_only_requirements_that_exist() -> None:
    coverage = read_coverage(ROOT)
    assert coverage.mistakes == []
    assert {letter: len([r for r in coverage.requirements if r.letter == letter]) for letter in coverage.titles} == {
        "R": 28, "M": 26, "T": 36, "K": 44, "D": 17, "E": 23, "C": 24,}  # fmt: skip
