"""What a benchmark takes from the programs that it runs."""

import sys

import pytest

from scripts.measuring_programs import measure


def test_the_last_line_is_the_result_and_each_line_is_heard() -> None:
    heard: list[str] = []
    program = (sys.executable, "-c", "import sys; print('measuring'); print('{\"done\": ' + sys.argv[1] + '}')")
    assert measure(program, 7, heard=heard.append) == {"done": 7}
    assert heard == ["measuring", '{"done": 7}']


def test_a_program_that_fails_has_no_result() -> None:
    with pytest.raises(SystemExit, match=r"^produce 100 failed with status 3$"):
        measure((sys.executable, "-c", "print('{}'); raise SystemExit(3)"), "produce", 100)


def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(SystemExit, match="status -9"):
        measure((sys.executable, "-c", "import time; time.sleep(1000)"), seconds_max=0)
