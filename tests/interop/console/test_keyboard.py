"""Everything in the console can be done without a mouse."""

from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.interop.console.conftest import OpenPage
from tests.interop.console.test_views import VIEWS
from tests.support.admin import Admin
from tests.support.browser.chromium import WIDTHS
from tests.support.processes import RunningBroker
from tests.support.scalable_writer import scalable_writer

pytestmark = pytest.mark.interop

TABS_MAX: Final = 200
"""Most presses of Tab until the focus has been everywhere in a view."""

REACHABLE: Final = """() => {
    const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")];
    const seen = all.filter((one) => !one.disabled && one.checkVisibility({visibilityProperty: true}));
    window.unreached = new Set(seen);
    window.invisible = [];
    return seen.length;
}"""

VISIT: Final = """() => {
    const one = document.activeElement;
    window.unreached.delete(one);
    const style = getComputedStyle(one);
    const isSeen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    if (one !== document.body && !isSeen) window.invisible.push(one.outerHTML);
    return window.unreached.size;
}"""

IS_INSIDE: Final = "() => document.activeElement === document.body || !!document.activeElement.closest('dialog')"
"""The page's own body has the focus while the browser's own buttons have it."""


def expect_all_reached(page: Page) -> None:
    """Press Tab until the focus was on everything that can be used, and see it each time."""
    assert page.evaluate(REACHABLE) > 0
    page.evaluate("document.activeElement.blur()")
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        if page.evaluate(VISIT) == 0:
            break
    assert page.evaluate("[...window.unreached].map((one) => one.outerHTML)") == []
    assert page.evaluate("window.invisible") == [], "the focus has to be seen"


@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_is_used_by_keyboard(open_page: OpenPage, broker: RunningBroker, width: int) -> None:
    Admin(broker.http_url).new_topic(2)
    page = open_page("/", width=width).page
    for view, heading in VIEWS.items():
        page.evaluate(f"location.hash = '#/{view}'")
        expect(page.locator("main h1")).to_have_text(heading)
        expect(page.locator(".page")).to_have_attribute("aria-busy", "false")
        expect_all_reached(page)


def test_keys_go_to_views_and_to_the_search(open_page: OpenPage, broker: RunningBroker) -> None:
    page = open_page("/").page
    heading = page.locator("main h1")
    expect(heading).to_have_text("Overview")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(heading).to_have_text("Topics")
    expect(page.locator(".page")).to_have_attribute("aria-busy", "false")
    page.keyboard.press("/")
    expect(page.get_by_label("Search topics")).to_be_focused()
    page.keyboard.type("?g")
    expect(page.get_by_label("Search topics")).to_have_value("?g")
    page.get_by_label("Search topics").blur()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(heading).to_be_focused()


def test_a_segment_is_split_by_keyboard(open_page: OpenPage, broker: RunningBroker) -> None:
    """The dialog holds the focus, Escape leaves it, and the focus is where it was."""
    topic = Admin(broker.http_url).new_topic(1)
    page = open_page(f"/#/topics/{quote(topic, safe='')}").page
    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowRight")
    split = page.get_by_role("button", name="Split")
    expect(split).to_be_visible()
    expect_all_reached(page)

    split.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Split segment 0?")
    expect(dialog).to_be_visible()
    for key in ["Tab"] * 6 + ["Shift+Tab"] * 6:
        page.keyboard.press(key)
        assert page.evaluate(IS_INSIDE), "the dialog lost the focus"
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(split).to_be_focused()

    page.keyboard.press("Enter")
    do = dialog.get_by_role("button", name="Split")
    do.focus()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="1", exact=True)).to_be_visible()


def test_the_focus_is_where_it_was_after_an_action(open_page: OpenPage, broker: RunningBroker) -> None:
    topic = Admin(broker.http_url).new_topic(1)
    page = open_page(f"/#/topics/{quote(topic, safe='')}").page
    unload = page.locator(".page-actions").get_by_role("button", name="Unload")
    unload.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Unload")
    dialog.locator("button[type=submit]").focus()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(unload).to_be_focused()


def test_a_deletion_asks_for_the_name(open_page: OpenPage, broker: RunningBroker) -> None:
    topic = Admin(broker.http_url).new_topic(1)
    page = open_page(f"/#/topics/{quote(topic, safe='')}").page
    page.get_by_role("button", name="Delete", exact=True).focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    do = dialog.get_by_role("button", name="Delete the topic")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    expect(do).to_be_disabled()
    page.keyboard.type(topic.rpartition("/")[2])
    expect(do).to_be_enabled()
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("Topics")


def test_an_abort_that_comes_too_late_is_refused(open_page: OpenPage, broker: RunningBroker) -> None:
    """The dialog says why, and the focus goes to the heading, because the button has gone with its row."""
    topic = Admin(broker.http_url).new_topic(1)
    with scalable_writer(broker.service_url, topic) as writer:
        begun = writer.begin()
        writer.send(b"kept", txn=begun)
        txn = ":".join(map(str, begun.transaction_id))
        watched = open_page("/#/transactions")
        page = watched.page
        page.get_by_role("button", name=f"Abort {txn}").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        writer.commit(begun)
        expect(page.get_by_role("row").filter(has_text=txn)).to_contain_text("committed")
        dialog.get_by_role("button", name="Abort it").click()
        expect(dialog.get_by_role("alert")).to_contain_text("it is already COMMITTED")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(page.locator("main h1")).to_be_focused()
        problems = watched.take_problems()
        assert problems, "the broker did not refuse"
        assert all("abortTransaction" in problem or "409" in problem for problem in problems), problems
