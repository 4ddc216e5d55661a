"""A page that is slower than its user, or than the broker, loses nothing.

Scripts stand for the slowness: each acts at the moment at which something could be lost.
"""

import re
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Route, expect

from tests.interop.console.conftest import OpenPage
from tests.support.admin import Admin
from tests.support.browser.chromium import WIDTHS
from tests.support.processes import RunningBroker
from tests.support.scalable_writer import scalable_writer

pytestmark = pytest.mark.interop

AS_SOON_AS_THERE: Final = """
    window.whenThere = (selector, then) => new MutationObserver((_all, watch) => {
        const found = document.querySelector(selector);
        if (!found) return;
        watch.disconnect();
        then(found);
    }).observe(document, {subtree: true, childList: true});
"""
"""Defines a function that acts before the browser paints what it waited for."""

NO_ANSWERS: Final = "() => { window.fetch = () => new Promise(() => null); }"
"""From then on, the broker answers nothing."""


def test_another_view_is_asked_for_as_the_page_comes(open_page: OpenPage) -> None:
    page = open_page("/metrics").page
    page.add_init_script(f"""{AS_SOON_AS_THERE}
        whenThere("main h1", () => {{
            history.replaceState(null, "", "#/settings");
            dispatchEvent(new HashChangeEvent("hashchange"));
        }});
    """)
    page.goto(page.url.replace("/metrics", "/#/topics"))
    expect(page.locator("main h1")).to_have_text("Settings")


def test_a_key_is_pressed_as_the_page_comes(open_page: OpenPage) -> None:
    page = open_page("/metrics").page
    page.add_init_script(f"""{AS_SOON_AS_THERE}
        whenThere("main h1", () => {{
            document.body.dispatchEvent(new KeyboardEvent("keydown", {{key: "?", bubbles: true}}));
        }});
    """)
    page.goto(page.url.replace("/metrics", "/"))
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


def test_the_menu_is_opened_as_the_page_comes(open_page: OpenPage) -> None:
    page = open_page("/metrics", width=WIDTHS[0]).page
    page.add_init_script(f"""{AS_SOON_AS_THERE}
        whenThere(".menu", (menu) => menu.click());
    """)
    page.goto(page.url.replace("/metrics", "/"))
    expect(page.locator(".page")).to_have_attribute("aria-busy", "false")
    expect(page.locator(".menu")).to_have_attribute("aria-expanded", "true")


def test_a_chosen_theme_is_there_before_the_page_is_painted(open_page: OpenPage) -> None:
    page = open_page("/metrics").page
    page.add_init_script(f"""{AS_SOON_AS_THERE}
        localStorage.setItem("theme", "dark");
        window.theme = new Promise((tell) => whenThere("main h1", () => tell(document.documentElement.dataset.theme)));
    """)
    page.goto(page.url.replace("/metrics", "/"))
    assert page.evaluate("window.theme") == "dark"


def test_letters_that_are_typed_while_the_page_searches_stay(open_page: OpenPage) -> None:
    page = open_page("/#/topics").page
    field = page.get_by_label("Search topics")
    expect(page.locator(".page")).to_have_attribute("aria-busy", "false")
    page.evaluate("""() => {
        const field = document.querySelector("[data-search]");
        window.shown = [];
        addEventListener("hashchange", () => {
            field.value = "ab";
            field.dispatchEvent(new Event("input"));
        }, {once: true});
        // Notes each text that a script puts into the field.
        const {get, set} = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
        Object.defineProperty(field, "value", {get, set(value) { window.shown.push(value); set.call(this, value); }});
    }""")
    field.press("a")
    expect(page.get_by_text("No topic's name contains “ab”.")).to_be_visible()
    assert "a" not in page.evaluate("window.shown")


def test_a_search_ends_with_its_view(open_page: OpenPage) -> None:
    """What was typed last is no search in the view that comes next, be it typed as the field comes."""
    page = open_page("/metrics").page
    page.add_init_script(f"""{AS_SOON_AS_THERE}
        window.left = new Promise((tell) => whenThere("[data-search]", (field) => {{
            field.value = "a";
            field.dispatchEvent(new Event("input"));
            history.replaceState(null, "", "#/subscriptions");
            dispatchEvent(new HashChangeEvent("hashchange"));
            // The timer of the search is older than this one, so it would be first.
            setTimeout(tell, 250);
        }}));
    """)
    page.goto(page.url.replace("/metrics", "/#/topics"))
    page.evaluate("window.left")
    expect(page.locator("main h1")).to_have_text("Subscriptions")
    assert page.evaluate("location.hash") == "#/subscriptions"


def test_a_search_ends_as_the_address_changes(open_page: OpenPage) -> None:
    """Its time is over before the browser tells the page of the new address."""
    page = open_page("/#/topics").page
    expect(page.locator(".page")).to_have_attribute("aria-busy", "false")
    page.get_by_label("Search topics").evaluate("""(field) => {
        const later = window.setTimeout;
        let search;
        window.setTimeout = (then) => { search = then; };
        field.value = "a";
        field.dispatchEvent(new Event("input"));
        window.setTimeout = later;
        location.hash = "#/subscriptions";
        search();
    }""")
    expect(page.locator("main h1")).to_have_text("Subscriptions")
    assert page.evaluate("location.hash") == "#/subscriptions"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_topics_picture_is_as_wide_as_the_page_from_the_first(
    open_page: OpenPage, broker: RunningBroker, width: int
) -> None:
    topic = Admin(broker.http_url).new_topic(2)
    page = open_page("/metrics", width=width).page
    page.add_init_script(f"""{AS_SOON_AS_THERE}
        window.widths = new Promise((tell) => whenThere("svg[role=listbox]", (picture) => requestAnimationFrame(() => {{
            tell([picture.viewBox.baseVal.width, picture.parentNode.clientWidth]);
        }})));
    """)
    page.goto(page.url.replace("/metrics", f"/#/topics/{quote(topic, safe='')}"))
    drawn, room = page.evaluate("window.widths")
    assert drawn == room


def test_what_is_decided_while_messages_are_on_their_way_is_seen(open_page: OpenPage, broker: RunningBroker) -> None:
    """T14: the broker says that a transaction has ended before it has sent the messages as they were before."""
    topic = Admin(broker.http_url).new_topic(1)
    with scalable_writer(broker.service_url, topic) as writer:
        begun = writer.begin()
        writer.send(b"in it", txn=begun)
        page = open_page("/metrics").page
        # Tells when the view's stream has said that more is readable than it said first.
        page.add_init_script("""
            const readable = new Set();
            window.decided = new Promise((tell) => {
                const parse = JSON.parse;
                JSON.parse = (text) => {
                    const said = parse(text);
                    for (const log of Object.values(said.logs ?? {})) readable.add(log.readable);
                    if (readable.size > 1) tell();
                    return said;
                };
            });
        """)
        states: list[str] = []

        def answer_late(route: Route) -> None:
            before = route.fetch()
            states.append(before.json()["messages"][0]["state"])
            writer.commit(begun)
            page.evaluate("window.decided")
            route.fulfill(response=before)

        page.route("**/admin/v2/segments/**", answer_late, times=1)
        page.goto(page.url.replace("/metrics", f"/#/messages/{quote(topic, safe='')}"))
        expect(page.get_by_role("table", name="Messages").locator(".badge")).to_have_text(["✓ committed"])
        assert states == ["open"]


def test_messages_that_are_given_up_on_their_way_are_not_shown(open_page: OpenPage, broker: RunningBroker) -> None:
    """Another page of messages is asked for while the first one comes."""
    topic = Admin(broker.http_url).new_topic(1)
    with scalable_writer(broker.service_url, topic) as writer:
        writer.send(b"one")
    page = open_page("/metrics").page
    # The first answer stays without its end.
    page.add_init_script("""
        const fetched = window.fetch;
        let isFirst = true;
        window.fetch = (url, options) => {
            if (!isFirst || !url.includes("/messages?")) return fetched(url, options);
            isFirst = false;
            const {signal} = options;
            return Promise.resolve(new Response(new ReadableStream({start: (body) => {
                body.enqueue(new TextEncoder().encode("{"));
                signal.addEventListener("abort", () => body.error(signal.reason));
            }})));
        };
    """)
    page.goto(page.url.replace("/metrics", f"/#/messages/{quote(topic, safe='')}"))
    page.get_by_label("At most").select_option("100")
    expect(page.get_by_role("table", name="Messages").locator("tbody tr")).to_have_text([re.compile("one")])


def test_an_action_that_ends_late_leaves_the_next_dialog_open(open_page: OpenPage, broker: RunningBroker) -> None:
    """Its own dialog was closed before the broker answered."""
    topic = Admin(broker.http_url).new_topic(1)
    page = open_page("/metrics").page
    # The answer to the action comes to the page when the test says so.
    page.add_init_script("""
        const fetched = window.fetch;
        const isReleased = new Promise((tell) => { window.release = tell; });
        window.isAnswered = new Promise((tell) => {
            window.fetch = async (url, options) => {
                const answer = await fetched(url, options);
                if (options?.method && options.method !== "GET") {
                    tell();
                    await isReleased;
                }
                return answer;
            };
        });
    """)
    page.goto(page.url.replace("/metrics", f"/#/topics/{quote(topic, safe='')}"))
    page.get_by_role("button", name="Unload").click()
    page.get_by_role("dialog").locator("button[type=submit]").click()
    page.evaluate("window.isAnswered")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.evaluate("window.release(); new Promise((done) => setTimeout(done))")
    expect(page.get_by_role("dialog")).to_contain_text("Delete")


def test_a_dialog_that_is_opened_as_the_last_one_closes_stays(open_page: OpenPage, broker: RunningBroker) -> None:
    """The browser tells the page of a closed dialog after what the user did next."""
    topic = Admin(broker.http_url).new_topic(1)
    page = open_page(f"/#/topics/{quote(topic, safe='')}").page
    unload = page.locator(".page-actions").get_by_role("button", name="Unload")
    dialog = page.get_by_role("dialog", name="Unload")
    unload.click()
    expect(dialog).to_be_visible()
    unload.evaluate("""(unload) => new Promise((done) => {
        const closed = document.querySelector("dialog");
        closed.addEventListener("close", () => setTimeout(done));
        closed.close();
        unload.click();
    })""")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(unload).to_be_focused()


def test_the_keys_are_asked_for_again_as_their_dialog_closes(open_page: OpenPage) -> None:
    page = open_page("/").page
    dialog = page.get_by_role("dialog", name="Keys")
    page.get_by_role("button", name="Keys").click()
    expect(dialog).to_be_visible()
    page.evaluate("""new Promise((done) => {
        const closed = document.querySelector("dialog");
        closed.addEventListener("close", () => setTimeout(done));
        closed.close();
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "?", bubbles: true}));
    })""")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_the_focus_stays_where_the_user_moved_it_as_a_dialog_closed(open_page: OpenPage, broker: RunningBroker) -> None:
    topic = Admin(broker.http_url).new_topic(1)
    page = open_page(f"/#/topics/{quote(topic, safe='')}").page
    page.get_by_role("button", name="Unload").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.evaluate("""new Promise((done) => {
        const closed = document.querySelector("dialog");
        closed.addEventListener("close", () => setTimeout(done));
        closed.close();
        document.querySelector(".page-actions a").focus();
    })""")
    expect(page.locator(".page-actions a")).to_be_focused()


def test_a_dialog_takes_the_keys_as_soon_as_it_is_there(open_page: OpenPage, broker: RunningBroker) -> None:
    """Letters that are typed at once are for its field, and not for the page behind it."""
    topic = Admin(broker.http_url).new_topic(1)
    page = open_page(f"/#/topics/{quote(topic, safe='')}").page
    page.evaluate(AS_SOON_AS_THERE)
    for name in ("Unload", "Keys"):
        is_open = page.get_by_role("button", name=name).evaluate("""(button) => new Promise((tell) => {
            whenThere("dialog", (dialog) => tell(dialog.open));
            button.click();
        })""")
        assert is_open, name
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)


def test_what_stays_until_the_broker_answers_has_its_own_name(open_page: OpenPage) -> None:
    """Another record or broker is asked for. What is shown meanwhile belongs to the one before, and leads there."""
    page = open_page("/#/metadata?key=%2Fcluster").page
    record = page.get_by_role("heading", name="Record")
    expect(record).to_have_text("Record /cluster")
    page.evaluate("() => { window.fetched = window.fetch; }")
    page.evaluate(NO_ANSWERS)
    page.evaluate("location.hash = '#/metadata?prefix=%2Fkafka%2F&key=%2Fkafka%2Fnone'")
    expect(page.get_by_role("navigation", name="Breadcrumb")).to_contain_text("kafka")
    expect(record).to_have_text("Record /cluster")
    expect(page.get_by_role("link", name="owners/")).to_have_attribute("href", "#/metadata?prefix=%2Fowners%2F")

    page.evaluate("() => { window.fetch = window.fetched; }")
    page.evaluate("location.hash = '#/cluster?broker=broker-1'")
    owned = page.get_by_role("heading", name="What")
    expect(owned).to_contain_text("What broker-1 owns")
    page.evaluate(NO_ANSWERS)
    page.evaluate("location.hash = '#/cluster?broker=none'")
    expect(page.get_by_role("button", name="broker-1")).to_have_attribute("aria-pressed", "false")
    expect(owned).to_contain_text("What broker-1 owns")
