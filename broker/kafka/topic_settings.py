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
MESSAGE_BYTES: Final = "max.message.bytes"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"

BOOLEAN_TYPE: Final = 1
STRING_TYPE: Final = 2
INT_TYPE: Final = 3
LONG_TYPE: Final = 5
LIST_TYPE: Final = 7
"""The types of settings, by Kafka's numbers."""

OF_TOPIC: Final = 1
OF_BROKER: Final = 4
DEFAULT: Final = 5
"""Where a value comes from, by Kafka's numbers."""

_MINUTE_MS: Final = 60_000
_WEEK_MS: Final = 7 * 24 * 60 * _MINUTE_MS
_MEGABYTE: Final = 1024 * 1024
_FOREVER: Final = -1
_NUMBER_MAX: Final = 2**31 - 1


class Setting(NamedTuple):
    """One setting: some values, or whole numbers within bounds."""

    type: int
    default: str
    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int = 2**63 - 1

    @property
    def is_free(self) -> bool:
        """Whether it takes other values than its default."""
        return self.minimum is not None or len(self.values) > 1


class Shown(NamedTuple):
    """A setting of a topic, as clients are shown it."""

    name: str
    value: str
    source: int
    setting: Setting


class ProduceRules(NamedTuple):
    """What a topic's settings say about batches."""

    batch_bytes_max: int
    is_log_append_time: bool
    """Whether the broker's time replaces that of the producer."""


class TopicSettings:
    """The settings of topics on a broker that takes batches of up to so many bytes."""

    def __init__(self, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self.known: Final[Mapping[str, Setting]] = {
            "cleanup.policy": Setting(LIST_TYPE, "delete", ("delete",)),
            "compression.type": Setting(STRING_TYPE, "producer", ("producer",)),
            MESSAGE_BYTES: Setting(INT_TYPE, str(batch_bytes_max), minimum=0, maximum=batch_bytes_max),
            TIMESTAMP_TYPE: Setting(STRING_TYPE, CREATE_TIME, (CREATE_TIME, LOG_APPEND_TIME)),
            "min.insync.replicas": Setting(INT_TYPE, "1", ("1",)),
            RETENTION_MS: Setting(LONG_TYPE, str(_WEEK_MS), minimum=_FOREVER),
            RETENTION_BYTES: Setting(LONG_TYPE, str(_FOREVER), minimum=_FOREVER),
        }

    def checked(self, name: str, value: str | None) -> str:
        """Return the value that a setting gets; its default if none is given.

        Raises:
            Refused: the setting, or its value, cannot be kept.
        """
        setting = self.known.get(name)
        if setting is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"The setting {name} is not served yet. Leave it out.")
        if value is None or value == setting.default or value in setting.values:
            return setting.default if value is None else value
        if setting.minimum is None:
            known = " or ".join(setting.values)
            raise Refused(ErrorCode.INVALID_CONFIG, f"{name}={value} is not served yet. Use {known}.")
        number = _whole(value)
        if number is None or not setting.minimum <= number <= setting.maximum:
            raise Refused(
                ErrorCode.INVALID_CONFIG,
                f"{name}={value} is no whole number from {setting.minimum} to {setting.maximum}.",
            )
        return str(number)

    def shown(self, given: Mapping[str, str]) -> list[Shown]:
        """All settings of a topic that was given these."""
        return [
            Shown(name, given.get(name, setting.default), OF_TOPIC if name in given else DEFAULT, setting)
            for name, setting in self.known.items()
        ]

    def rules_in(self, configs: Mapping[str, str]) -> ProduceRules:
        """What these settings of a topic say about batches. A larger bound of an earlier start does not count."""
        size = min(int(configs.get(MESSAGE_BYTES, self._batch_bytes_max)), self._batch_bytes_max)
        return ProduceRules(size, configs.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME)


def _whole(value: str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None


def retention_in(configs: Mapping[str, str]) -> Retention:
    """What a topic's settings say about how long it keeps its records (K37)."""
    age_ms = int(configs.get(RETENTION_MS, _WEEK_MS))
    size = int(configs.get(RETENTION_BYTES, _FOREVER))
    if 0 in {age_ms, size}:
        return Retention(0, 0)
    minutes = _FOREVER if age_ms < 0 else min(-(-age_ms // _MINUTE_MS), _NUMBER_MAX)
    megabytes = _FOREVER if size < 0 else min(-(-size // _MEGABYTE), _NUMBER_MAX)
    return Retention(minutes, megabytes)


def settings_of(retention: Retention) -> dict[str, str]:
    """What a topic's settings are if it keeps its records that long."""
    age_ms = _FOREVER if retention.minutes < 0 else retention.minutes * _MINUTE_MS
    size = _FOREVER if retention.megabytes < 0 else retention.megabytes * _MEGABYTE
    return {RETENTION_MS: str(age_ms), RETENTION_BYTES: str(size)}
