"""Make the README's picture of the console: a topic whose segments split and merge under load.

    .venv/bin/python scripts/need.py debian:chromium
    .venv/bin/python scripts/console_picture.py

It writes docs/console.png. The broker, the writer and the browser run on this machine and end with the script.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import expect

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.admin import Admin
from tests.support.browser.chromium import running_chromium
from tests.support.processes import running_broker
from tests.support.scalable_writer import ScalableWriter, scalable_writer

TOPIC: Final = "topic://public/default/flights"
PAGE: Final = "/#/topics/topic%3A%2F%2Fpublic%2Fdefault%2Fflights"
MESSAGES: Final = 300
"""Between two changes of the layout."""
WIDTH: Final = 1_200
HEIGHT: Final = 900
CHANGES: Final = (("split", 0), ("split", 1), ("merge", 4), ("split", 3))
"""What is done, and with which segment. A merge joins a segment and the next one."""


def main() -> int:
    """Make the picture."""
    target = Path(__file__).resolve().parent.parent / "docs" / "console.png"
    with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder) / "data") as broker:
        admin = Admin(broker.http_url)
        admin.create(TOPIC, 2)
        with (
            running_chromium() as chromium,
            chromium.open_page(broker.http_url, folder=Path(folder), width=WIDTH) as watched,
            scalable_writer(broker.service_url, TOPIC) as writer,
        ):
            watched.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            watched.page.goto(f"{broker.http_url}{PAGE}")
            for act, segment in CHANGES:
                write(writer)
                if act == "split":
                    admin.split_now(TOPIC, segment)
                else:
                    admin.merge_now(TOPIC, segment, segment + 1)
            write(writer)
            expect(watched.page.locator("main h1")).to_have_text("flights")
            watched.page.screenshot(path=target)
    print(f"wrote {target.name}, {target.stat().st_size // 1024} KiB")
    return 0


def write(writer: ScalableWriter) -> None:
    """Send messages with many keys, so that each segment gets some."""
    for number in range(MESSAGES):
        writer.send(b"departed" * 16, key=f"flight {number}")


if __name__ == "__main__":
    sys.exit(main())
