"""The examples of pages that show the plugin. They run as they stand."""

import re
from typing import Final

import pytest

from tests.tidewire.testing.sessions import ROOT, run

PAGES: Final = {"docs/how-to/test-your-application.md": 3, "README.md": 1}
_BLOCK: Final = re.compile(r"(<!-- test: pytest -->\n)?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(300)
def test_the_examples_run_as_a_users_tests(users: pytest.Pytester) -> None:
    """In one session, because they all use its broker."""
    for page, count in PAGES.items():
        blocks = [code for marked, code in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if marked]
        assert len(blocks) == count
        for number, code in enumerate(blocks):
            users.makepyfile(**{f"test_{page.split('.')[0].rpartition('/')[2].replace('-', '_')}_{number}": code})
    run(users).assert_outcomes(passed=sum(PAGES.values()))
