"""The overview says what needs attention, as `tidewire cluster doctor` does."""

import json
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect

from tests.interop.console.conftest import OpenPage
from tests.support.processes import RunningBroker

pytestmark = pytest.mark.interop

DOCTOR = "/admin/v2/cluster/doctor"


def test_the_doctors_findings_are_shown(open_page: OpenPage, broker: RunningBroker) -> None:
    """The page shows what the doctor's own report has, and looks when it is asked to."""
    page = open_page("/#/settings").page
    looks: list[str] = []
    page.on("request", lambda request: looks.append(request.url) if request.url.endswith(DOCTOR) else None)
    page.evaluate("location.hash = '#/overview'")
    panel = page.locator(".findings")
    expect(panel).to_contain_text("It found nothing wrong.")
    expect(page.locator(".lead")).to_contain_text("Nothing needs attention.")

    # A file that belongs to nobody, as an interrupted copy leaves it.
    stray = broker.data_dir / "ledgers" / f"{9_999:020d}.ledger"
    stray.write_bytes(b"")
    page.get_by_role("button", name="Look again").click()
    finding = page.locator(".finding")
    expect(finding).not_to_have_count(0)
    report: dict[str, Any] = json.loads(urlopen(f"{broker.http_url}{DOCTOR}", timeout=60).read())
    expect(finding).to_have_count(len(report["findings"]))
    for shown, told in zip(finding.all(), report["findings"], strict=True):
        expect(shown).to_contain_text(told["about"])
        expect(shown).to_contain_text(told["what"].replace("`", ""))
        expect(shown).to_contain_text(told["advice"].replace("`", ""))
    expect(page.locator(".lead")).to_contain_text("The doctor found")
    stray.unlink()
    page.get_by_role("button", name="Look again").click()
    expect(panel).to_contain_text("It found nothing wrong.")
    assert len(looks) == 3, "the page looks when it opens and when it is asked, and never else"
