"""The command line that a dialog shows does what its button does.

Each story runs twice. Once the button of the dialog ends it, and once the command line that was read there, in a shell.
"""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.interop.console.conftest import OpenPage
from tests.interop.console.test_stuck import MESSAGES, fill, reading
from tests.support.admin import Admin
from tests.support.processes import RunningBroker
from tests.support.scalable_writer import scalable_writer

pytestmark = pytest.mark.interop

NAMES: Final = ("billing", "-it's 50% a+b/c")
"""Subscriptions. The second one is no word of a shell, and looks like an option."""
KINDS: Final = ("topic", "persistent")

COMMAND_SECONDS_MAX: Final = 120.0

CarryOut: TypeAlias = Callable[[Locator], None]


@pytest.fixture(params=["button", "command line"])
def carry_out(request: pytest.FixtureRequest, tmp_path: Path) -> CarryOut:
    """Return what does the action of an open dialog."""
    if request.param == "button":
        return press
    script = tmp_path / "tidewire"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidewire.cli "$@"\n')
    script.chmod(0o755)

    def run(dialog: Locator) -> None:
        shown = dialog.locator("code").last.inner_text()
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        ran = subprocess.run(
            ["sh", "-c", shown],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        assert ran.returncode == 0, f"{shown}\n{ran.stderr}"

    return run


def press(dialog: Locator) -> None:
    """Confirm with the dialog's own button."""
    expect(dialog).to_be_visible()
    for field in dialog.get_by_role("textbox").all():
        field.fill(dialog.locator("label code").inner_text())
    dialog.locator("button[type=submit]").click()
    expect(dialog).to_have_count(0)


def topic_page(open_page: OpenPage, topic: str, subscription: str = "") -> Page:
    """Open the page of a topic, with a subscription unfolded."""
    address = f"/#/topics/{quote(topic, safe='')}?subscription={quote(subscription, safe='')}"
    page: Page = open_page(address).page
    return page


def subscriptions_of(broker: RunningBroker, topic: str) -> dict[str, Any]:
    """Return what the broker says of a topic's subscriptions."""
    kind, _, name = topic.partition("://")
    path = {"topic": "scalable", "persistent": "persistent"}[kind]
    with urllib.request.urlopen(f"{broker.http_url}/admin/v2/{path}/{name}/stats", timeout=60) as answer:
        told: dict[str, Any] = json.loads(answer.read())["subscriptions"]
    return told


def backlogs(broker: RunningBroker, topic: str) -> dict[str, int]:
    """Return the backlog of each of a topic's subscriptions."""
    return {name: told["msgBacklog"] for name, told in subscriptions_of(broker, topic).items()}


@pytest.fixture(params=KINDS)
def topic(request: pytest.FixtureRequest, broker: RunningBroker) -> str:
    """Return a topic with messages that two subscriptions have not read."""
    made = Admin(broker.http_url).new_topic(1)
    if request.param == "persistent":
        made = made.replace("topic://", "persistent://")[:-1]
    with reading(broker, made, name=NAMES[0]), reading(broker, made, name=NAMES[1]):
        fill(broker, made)
    assert backlogs(broker, made) == dict.fromkeys(NAMES, MESSAGES)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_subscription_skips_its_backlog(
    open_page: OpenPage, broker: RunningBroker, topic: str, name: str, carry_out: CarryOut
) -> None:
    page = topic_page(open_page, topic, name)
    page.locator("details[open]").get_by_role("button", name="Skip the backlog").click()
    carry_out(page.get_by_role("dialog"))
    assert backlogs(broker, topic) == {**dict.fromkeys(NAMES, MESSAGES), name: 0}


@pytest.mark.parametrize("name", NAMES)
def test_a_subscription_is_moved(
    open_page: OpenPage, broker: RunningBroker, topic: str, name: str, carry_out: CarryOut
) -> None:
    page = topic_page(open_page, topic, name)
    steering = page.locator("details[open]")
    for time, left in (("2099-01-01T00:00:00", 0), ("2020-01-01T00:00:00", MESSAGES)):
        steering.get_by_label("Go to").fill(time)
        steering.get_by_role("button", name="Seek").click()
        carry_out(page.get_by_role("dialog"))
        assert backlogs(broker, topic) == {**dict.fromkeys(NAMES, MESSAGES), name: left}


@pytest.mark.parametrize("name", NAMES)
def test_a_subscription_is_deleted(
    open_page: OpenPage, broker: RunningBroker, topic: str, name: str, carry_out: CarryOut
) -> None:
    page = topic_page(open_page, topic, name)
    page.locator("details[open]").get_by_role("button", name="Delete").click()
    carry_out(page.get_by_role("dialog"))
    assert list(subscriptions_of(broker, topic)) == [each for each in NAMES if each != name]


def test_a_consumer_does_not_hinder_a_deletion(
    open_page: OpenPage, broker: RunningBroker, topic: str, carry_out: CarryOut
) -> None:
    """Nothing refuses it. Whether the subscription is there again depends on whether its consumer came back."""
    page = topic_page(open_page, topic, NAMES[0])
    with reading(broker, topic, name=NAMES[0]):
        page.locator("details[open]").get_by_role("button", name="Delete").click()
        carry_out(page.get_by_role("dialog"))


def test_a_topic_is_created(open_page: OpenPage, broker: RunningBroker, carry_out: CarryOut) -> None:
    admin = Admin(broker.http_url)
    topic = admin.new_topic()
    admin.delete(topic)
    page = open_page("/#/topics").page
    page.get_by_role("button", name="Create a topic").click()
    page.get_by_label("Name").fill(topic.rpartition("/")[2])
    page.get_by_label("Segments").fill("3")
    page.get_by_role("button", name="Create…").click()
    carry_out(page.get_by_role("dialog"))
    assert admin.active_segments(topic) == [0, 1, 2]


def test_a_segment_is_split_and_merged(open_page: OpenPage, broker: RunningBroker, carry_out: CarryOut) -> None:
    """Also below the number of segments that the topic was created with."""
    admin = Admin(broker.http_url)
    topic = admin.new_topic(2)
    page = topic_page(open_page, topic)
    for segment, button, left in ((1, "Split", [0, 2, 3]), (2, "Merge with 3", [0, 4]), (0, "Merge with 4", [5])):
        page.get_by_role("button", name=str(segment), exact=True).click()
        page.get_by_role("button", name=button).click()
        carry_out(page.get_by_role("dialog"))
        assert admin.active_segments(topic) == left


def test_a_topic_is_deleted(open_page: OpenPage, broker: RunningBroker, carry_out: CarryOut) -> None:
    """A connected consumer does not hinder it."""
    topic = Admin(broker.http_url).new_topic()
    with reading(broker, topic):
        page = topic_page(open_page, topic)
        page.locator(".page-actions").get_by_role("button", name="Delete").click()
        carry_out(page.get_by_role("dialog"))
    page.evaluate(f"location.hash = '#/topics?search={topic.rpartition('/')[2]}'")
    expect(page.get_by_text(re.compile("No topic's name contains"))).to_be_visible()


def test_a_transaction_is_aborted(open_page: OpenPage, broker: RunningBroker, carry_out: CarryOut) -> None:
    topic = Admin(broker.http_url).new_topic()
    with scalable_writer(broker.service_url, topic) as writer:
        begun = writer.begin()
        writer.send(b"hidden", txn=begun)
        txn = ":".join(map(str, begun.transaction_id))
        page = open_page("/#/transactions").page
        page.get_by_role("button", name=f"Abort {txn}").click()
        carry_out(page.get_by_role("dialog"))
        expect(page.get_by_role("row").filter(has_text=txn)).to_contain_text("aborted")
