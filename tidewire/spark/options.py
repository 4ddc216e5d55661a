"""The options of `spark.read.format("tidewire")`, and what they may say.

    service_url                  pulsar://HOST:PORT of any broker; required
    topic                        topic://TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME; required
    operation_timeout_seconds    how long a broker may take to connect, to answer, or to send the next message [30]

An option that is not listed is refused by name: a misspelt one that is silently ignored costs its user an afternoon.
Spark hands option names over in lower case, so names here are compared that way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from tidewire.spark.errors import InvalidOption

DEFAULT_PORT: Final = 6650
OPERATION_TIMEOUT_SECONDS_DEFAULT: Final = 30.0
OPERATION_TIMEOUT_SECONDS_MAX: Final = 3600.0
"""A longer one than this is a mistake in its unit."""

SCALABLE: Final = "topic://"
PERSISTENT: Final = "persistent://"

_NAMES: Final = ("service_url", "topic", "operation_timeout_seconds")
_TOPIC: Final = re.compile(r"(?:topic|persistent)://[^/]+/[^/]+/.+")


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Read `pulsar://HOST[:PORT]`; the port is 6650 unless given.

    Raises:
        ValueError: it is written otherwise, or asks for TLS.
    """
    parts = urlsplit(url)
    if parts.scheme == "pulsar+ssl":
        raise ValueError("TLS is not spoken yet; use pulsar://")
    # Reading the port checks it.
    port = parts.port
    if parts.scheme != "pulsar" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise ValueError("expected pulsar://HOST:PORT")
    return Address(parts.hostname, DEFAULT_PORT if port is None else port)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options that were checked."""

    service: Address
    topic: str
    operation_timeout_seconds: float = OPERATION_TIMEOUT_SECONDS_DEFAULT

    @property
    def is_scalable(self) -> bool:
        """Whether the topic has segments; if not it is a `persistent://` one."""
        return self.topic.startswith(SCALABLE)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check what the user gave.

        Raises:
            InvalidOption: an option is unknown, missing or wrong; its text names it.
        """
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(options.keys() - set(_NAMES))
        if unknown:
            raise InvalidOption(f"unknown option {unknown[0]!r}; format tidewire knows {', '.join(_NAMES)}")
        return cls(_service(options), _topic(options), _timeout(options))


def _service(options: Mapping[str, str]) -> Address:
    url = _required(options, "service_url", "pulsar://127.0.0.1:6650")
    try:
        return parse_address(url)
    except ValueError as error:
        raise InvalidOption(f"option service_url: {url!r} is no address of a broker: {error}") from error


def _topic(options: Mapping[str, str]) -> str:
    topic = _required(options, "topic", "topic://public/default/flights")
    if not _TOPIC.fullmatch(topic):
        raise InvalidOption(
            f"option topic: {topic!r} is no full name of a topic; "
            f"expected {SCALABLE}TENANT/NAMESPACE/NAME or {PERSISTENT}TENANT/NAMESPACE/NAME"
        )
    return topic


def _timeout(options: Mapping[str, str]) -> float:
    text = options.get("operation_timeout_seconds")
    if text is None:
        return OPERATION_TIMEOUT_SECONDS_DEFAULT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= OPERATION_TIMEOUT_SECONDS_MAX:
        raise InvalidOption(
            f"option operation_timeout_seconds: {text!r} is no number of seconds "
            f"above 0 and up to {OPERATION_TIMEOUT_SECONDS_MAX:.0f}"
        )
    return seconds


def _required(options: Mapping[str, str], name: str, example: str) -> str:
    value = options.get(name)
    if not value:
        raise InvalidOption(f'option {name} is missing; give it as .option("{name}", "{example}")')
    return value
