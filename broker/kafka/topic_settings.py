"""The settings of a Kafka topic: which may be given, which values they take, and what they mean here.

A setting that this broker cannot keep is refused by name, and so is another value of one that has only one. Retention
is kept in whole minutes and MiB, rounded up, as Pulsar's is. Pure.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.kafka.errors import Refused
from broker.retention import Retention
from tidewire.wire.kafka.error_codes import ErrorCode

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"

STRING_TYPE: Final = 2
INT_TYPE: Final = 3
LONG_TYPE: Final = 5
LIST_TYPE: Final = 7
"""The types of settings, by Kafka's numbers."""

_MINUTE_MS: Final = 60_000
_MEGABYTE: Final = 1024 * 1024
_FOREVER: Final = -1
_NUMBER_MAX: Final = 2**31 - 1


class Setting(NamedTuple):
    """One setting."""

    type: int
    default: str
    is_free: bool
    """Whether it takes other values. They are whole numbers of at least -1."""


SETTINGS: Final[Mapping[str, Setting]] = {
    "cleanup.policy": Setting(LIST_TYPE, "delete", is_free=False),
    "compression.type": Setting(STRING_TYPE, "producer", is_free=False),
    "message.timestamp.type": Setting(STRING_TYPE, "CreateTime", is_free=False),
    "min.insync.replicas": Setting(INT_TYPE, "1", is_free=False),
    RETENTION_MS: Setting(LONG_TYPE, str(7 * 24 * 60 * _MINUTE_MS), is_free=True),
    RETENTION_BYTES: Setting(LONG_TYPE, str(_FOREVER), is_free=True),
}


def checked(name: str, value: str | None) -> str:
    """Return the value that a setting gets; its default if none is given.

    Raises:
        Refused: the setting, or its value, cannot be kept.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        raise Refused(ErrorCode.INVALID_CONFIG, f"The setting {name} is not served yet. Leave it out.")
    if value is None or value == setting.default:
        return setting.default
    if not setting.is_free:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name}={value} is not served yet. Use {setting.default}.")
    try:
        number = int(value)
    except ValueError:
        number = _FOREVER - 1
    if number < _FOREVER:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name}={value} is no whole number of at least -1.")
    return str(number)


def retention_in(configs: Mapping[str, str]) -> Retention:
    """What a topic's settings say about how long it keeps its records (K37)."""
    age_ms = int(configs.get(RETENTION_MS, SETTINGS[RETENTION_MS].default))
    size = int(configs.get(RETENTION_BYTES, SETTINGS[RETENTION_BYTES].default))
    if 0 in {age_ms, size}:
        return Retention(0, 0)
    minutes = _FOREVER if age_ms < 0 else min(-(-age_ms // _MINUTE_MS), _NUMBER_MAX)
    megabytes = _FOREVER if size < 0 else min(-(-size // _MEGABYTE), _NUMBER_MAX)
    return Retention(minutes, megabytes)
