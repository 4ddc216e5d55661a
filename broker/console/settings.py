"""The broker's settings, as people read them. They do not change while it runs."""

from collections.abc import Mapping

import trio

from broker.config import BrokerSettings
from broker.console.feed import Parts
from storage.signal import Signal


class SettingsFeed:
    """See the module's docstring."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.changed = Signal()
        self._settings = settings

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait until cancelled."""
        task_status.started()
        await trio.sleep_forever()

    def parts(self) -> Parts:
        """See `Feed`."""
        return {"settings": self._settings}


def settings_view(settings: BrokerSettings, release: str) -> Mapping[str, object]:
    """Return each setting with its value and its default. None of them is a secret."""
    rows = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        rows.append(
            {
                "name": name,
                "value": _text(value),
                "default": _text(field.default),
                "is_default": value == field.default,
            }
        )
    return {"release": release, "rows": rows}


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(map(str, value)) or "none" if type(value) is tuple else str(value)
        case _:
            return str(value)
