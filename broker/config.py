"""The broker's settings, and every way to give them.

Command-line flags override `TIDEWIRE_*` environment variables, which override the TOML file that `--config` names,
which overrides the defaults. One class describes them all. The field `data_dir` is the flag `--data-dir`, the variable
`TIDEWIRE_DATA_DIR` and the key `data_dir` at the top level of the file. Sizes are bytes or text such as "64MiB".

An operator's mistakes become a `ConfigurationError` with one sentence for each. The sentence names where the value came
from. Nothing is guessed. An unknown key in the file is a mistake, and so is an unknown `TIDEWIRE_*` variable. Settings
do not change while a broker runs.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    ByteSize,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from broker.addresses import NO_LISTENER, Address
from broker.errors import StartError
from broker.metadata_setting import EMBEDDED, check_metadata
from broker.setting_problems import problem_of, shown

ENVIRONMENT_PREFIX: Final = "TIDEWIRE_"

CLIENT_VARIABLES: Final = frozenset({"TIDEWIRE_HTTP_URL", "TIDEWIRE_SERVICE_URL"})
"""Variables that other commands read and no broker does. They may be set where a broker starts."""

_KUBERNETES: Final = re.compile(
    r"TIDEWIRE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables with which Kubernetes announces a service named tidewire to every pod beside it."""


class MetricsLabels(StrEnum):
    """How fine the labels of `/metrics` are."""

    NONE = "none"
    NAMESPACE = "namespace"
    TOPIC = "topic"


_SWITCHES: Final = frozenset({"allow_unauthenticated", "auto_scale", "deduplication"})
_PLAIN_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NAMESPACE: Final = "^[A-Za-z0-9_-]+/[A-Za-z0-9_-]+$"
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_GIB: Final = 1024 * _MIB

CLIENT_MEMORY_BYTES_MIN: Final = 16 * _MIB
"""The least memory with which a broker serves clients."""


class ConfigurationError(StartError):
    """The operator's settings cannot be used. Each problem is one sentence that says what to change."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def _address(value: object) -> Address:
    if isinstance(value, Address):
        return value
    if not isinstance(value, str):
        raise ValueError("it must be text such as 127.0.0.1:6650")
    return Address.parse(value)


def _address_or_none(value: object) -> Address | None:
    if value is None or value == NO_LISTENER:
        return None
    try:
        return _address(value)
    except ValueError as mistake:
        raise ValueError(f"{mistake}; or give {NO_LISTENER}") from None


def _hosts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [host.strip() for host in value.split(",")]
    if not isinstance(value, list | tuple) or not all(isinstance(host, str) for host in value):
        raise ValueError("it must be host names separated by commas, such as broker-1.example,192.0.2.7")
    for host in value:
        try:
            Address.parse(f"[{host}]:0" if ":" in host else f"{host}:0")
        except ValueError:
            raise ValueError(f"{host!r} is neither an IP address nor a host name; leave out ports") from None
    return tuple(value)


def _folder(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path must not contain a NUL character")
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("the home folder for ~ is unknown") from None


# NoDecode: an address is a tuple, and pydantic would otherwise expect JSON in the environment.
AddressSetting = Annotated[Address, NoDecode, PlainValidator(_address)]
OptionalAddressSetting = Annotated[Address | None, NoDecode, PlainValidator(_address_or_none)]


class BrokerSettings(BaseSettings):
    """The settings of one broker. Use `load_settings`: it reads the file and explains errors.

    Raises:
        ValidationError: from pydantic, when it is constructed directly.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
    )

    data_dir: Annotated[Path, AfterValidator(_folder)] = Path("data")
    """The folder for ledgers, metadata and this broker's journal. It is created if missing. A cluster's brokers share
    it."""
    broker_id: str = Field("broker-1", pattern=_PLAIN_NAME)
    """Unique among the brokers of a cluster. It must stay the same after a restart, because it names the journal."""
    cluster: str = Field("tidewire", pattern=_PLAIN_NAME)
    """The cluster's name, as administrators' tools show it."""

    pulsar: AddressSetting = Address("127.0.0.1", 6650)
    """Where the Pulsar protocol is served."""
    kafka: OptionalAddressSetting = Address("127.0.0.1", 9092)
    """Where Kafka's protocol is served. With `none` it is not served."""
    advertised_kafka: AddressSetting | None = None
    """The address that Kafka's clients are told to connect to, if it is not the listener's."""
    kafka_namespace: str = Field("public/default", pattern=_NAMESPACE)
    """The namespace, as tenant/namespace, whose topics Kafka's clients see."""
    kafka_partitions: int = Field(1, ge=1, le=10_000)
    """Partitions of a topic that a Kafka client's first use creates (Kafka's num.partitions)."""
    http: AddressSetting = Address("127.0.0.1", 8080)
    """Where administration and metrics are served."""
    http_hosts: Annotated[tuple[str, ...], NoDecode, PlainValidator(_hosts)] = ()
    """Host names or IP addresses, separated by commas, that HTTP clients may use besides the broker's own addresses.
    Other names are refused, because a web page could make its own name resolve to the broker's address."""
    metrics_labels: MetricsLabels = MetricsLabels.TOPIC
    """How fine `/metrics` is: `topic` tells topics, subscriptions and groups apart; `namespace` and `none` sum them."""
    metrics_series_max: int = Field(1_000, ge=1, le=100_000)
    """Topics that `/metrics` shows one by one, and as many subscriptions and groups; others are summed."""
    advertised_pulsar: AddressSetting | None = None
    """The address that clients are told to connect to, if it is not the listener's (see `advertised_address`)."""
    internal: AddressSetting | None = None
    """Where the other brokers on this data folder reach this one. Without it, one broker has the folder to itself. Only
    for `embedded` metadata."""
    allow_unauthenticated: bool = False
    """Accept that every client that reaches a listener may do everything. Listeners off loopback need it."""

    metadata: Annotated[str, PlainValidator(check_metadata)] = EMBEDDED
    """Where metadata is stored: `embedded` in `data_dir`, beside the ledgers; `etcd://HOST:PORT,HOST:PORT` in etcd."""
    metadata_connect_seconds_max: float = Field(60.0, gt=0, allow_inf_nan=False)
    """How long the broker tries to reach etcd at its start, in seconds."""
    session_timeout_seconds: float = Field(10.0, ge=2, le=300)
    """How long a broker that is silent keeps what it owns, in seconds. Then the other brokers of its cluster take over.
    With metadata in etcd it is rounded up to whole seconds."""
    journal_file_bytes_max: ByteSize = Field(ByteSize(64 * _MIB), ge=_MIB, le=16 * _GIB)
    """A journal file that has grown to this size is followed by a new one."""
    ledger_bytes_max: ByteSize = Field(ByteSize(256 * _MIB), ge=_MIB, le=1024 * _GIB)
    """A topic rolls to a new ledger when its ledger has grown to this size."""
    ledger_age_seconds_max: float = Field(4 * 3600.0, gt=0, allow_inf_nan=False)
    """A topic rolls to a new ledger when its ledger is older than this and not empty."""
    message_bytes_max: ByteSize = Field(ByteSize(5 * _MIB), ge=_KIB, le=5 * _MIB)
    """The largest message, or batch of messages, that a producer may send. Clients learn it when they connect."""

    processes: int = Field(1, ge=1, le=64)
    """Brokers that one command runs on this machine as a cluster, with one address for clients to begin at. They share
    `connections_max` and `client_memory_bytes_max`."""
    connections_max: int = Field(10_000, ge=1, le=1_000_000)
    """Most connections of Pulsar clients at a time; further ones are refused. The limit on open files may lower it."""
    client_memory_bytes_max: ByteSize = Field(ByteSize(512 * _MIB), ge=CLIENT_MEMORY_BYTES_MIN, le=1024 * _GIB)
    """Memory for bytes received and not yet stored, and for bytes that clients have not read; half for each.
    At the bound, clients that hold much of it wait."""

    deduplication: bool = False
    """Store a resent message once on persistent:// topics too (Pulsar's brokerDeduplicationEnabled)."""
    default_initial_segments: int = Field(1, ge=1, le=1024)
    """Segments of a new scalable topic whose creator gives no number."""
    auto_scale: bool = True
    """Split and merge scalable topics by load and consumers, unless a topic has its own setting (PIP-483)."""
    retention_minutes: int = Field(-1, ge=-1, le=2**31 - 1)
    """How long messages are kept after every subscription has acknowledged them; -1: forever. A topic or namespace may
    override it. It is Pulsar's defaultRetentionTimeInMinutes. With 0, `retention_megabytes` must be 0 too: messages are
    then removed at once, in whole ledgers. Without subscriptions, all messages count as acknowledged."""
    retention_megabytes: int = Field(-1, ge=-1, le=2**31 - 1)
    """How many MiB of such messages each topic or segment keeps; -1: all (Pulsar's defaultRetentionSizeInMB)."""
    segment_retention_seconds: float = Field(7 * 86_400.0, ge=0, allow_inf_nan=False)
    """The least time for which a split or merged segment is kept. Later it is removed with its messages, as soon as
    every subscription has drained it. Without subscriptions it stays."""
    consumer_session_grace_seconds: float = Field(60.0, ge=0, le=86_400.0)
    """How long an ordered consumer keeps its segments after its connection is lost, so that none moves if it returns
    (Pulsar's scalableTopicConsumerSessionGracePeriodSeconds). A consumer that closes gives them up at once."""
    transaction_coordinators: int = Field(16, ge=1, le=1024)
    """Coordinators over which clients spread their transactions. Lower it only while no transaction is open."""
    txn_timeout_seconds_max: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """The longest timeout a transaction may request. An open transaction holds back every reader of its topics."""
    txn_retention_seconds: float = Field(60.0, ge=0, allow_inf_nan=False)
    """How long the outcome of a finished transaction is kept, in seconds."""

    log_format: Literal["text", "json"] = "text"
    """How the log's lines are written: for people, or each as one JSON object."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged. `debug` also logs what topics and connections do."""

    @field_validator("*", mode="before")
    @classmethod
    def _only_switches_are_true_or_false(cls, value: object, info: ValidationInfo) -> object:
        # Pydantic would read true as 1, which is never meant for a number.
        if isinstance(value, bool) and info.field_name not in _SWITCHES:
            raise ValueError("only a switch can be true or false")
        return value

    @model_validator(mode="after")
    def _no_retention_is_said_twice(self) -> "BrokerSettings":
        if (self.retention_minutes == 0) != (self.retention_megabytes == 0):
            raise PydanticCustomError(
                "retention", "If one of retention_minutes and retention_megabytes is 0, both must be 0."
            )
        return self

    @model_validator(mode="after")
    def _brokers_meet_at_an_internal_address_or_in_etcd(self) -> "BrokerSettings":
        if self.internal is not None and self.metadata != EMBEDDED:
            raise PydanticCustomError(
                "internal", "With metadata in etcd, brokers need no address for each other. Leave --internal out."
            )
        return self

    @model_validator(mode="after")
    def _others_can_connect_to_what_they_are_told(self) -> "BrokerSettings":
        told = {"advertised_pulsar": "clients", "internal": "the other brokers", "advertised_kafka": "clients"}
        for name, who in told.items():
            address: Address | None = getattr(self, name)
            if address is not None and address.is_wildcard:
                raise PydanticCustomError(
                    "wildcard",
                    "Nobody can connect to {flag} {address}. Give an address of this machine that {who} reach.",
                    {"flag": flag_of(name), "address": str(address), "who": who},
                )
        is_alone = self.metadata == EMBEDDED and self.internal is None
        if not is_alone and self.pulsar.is_wildcard and self.advertised_pulsar is None:
            raise PydanticCustomError(
                "advertised",
                "In a cluster, other brokers send clients to this one, and nobody can connect to {address}. "
                "Give --advertised-pulsar HOST:PORT, an address of this machine that clients reach.",
                {"address": str(self.pulsar)},
            )
        return self

    @model_validator(mode="after")
    def _listeners_have_different_addresses(self) -> "BrokerSettings":
        taken: dict[Address, str] = {}
        for name in ("pulsar", "http", "kafka", "internal"):
            address: Address | None = getattr(self, name)
            if address is None or address.port == 0:
                continue
            other = taken.setdefault(address, name)
            if other != name:
                raise PydanticCustomError(
                    "listeners",
                    "{flag} and {other} cannot both be {address}. Give each its own port.",
                    {"flag": flag_of(other), "other": flag_of(name), "address": str(address)},
                )
        return self

    @model_validator(mode="after")
    def _listeners_off_loopback_are_wanted(self) -> "BrokerSettings":
        if self.allow_unauthenticated:
            return self
        listeners = {"pulsar": self.pulsar, "kafka": self.kafka, "http": self.http, "internal": self.internal}
        for name, address in listeners.items():
            if address is not None and not address.is_loopback:
                raise PydanticCustomError(
                    "unauthenticated",
                    "Other machines can reach {flag} {address}, and the broker does not authenticate clients. Listen "
                    "on 127.0.0.1, or allow it with --allow-unauthenticated.",
                    {"flag": flag_of(name), "address": str(address)},
                )
        return self


def load_settings(flags: Mapping[str, Any], config_file: Path | None = None) -> BrokerSettings:
    """Load settings from flags, the environment, a file and the defaults, in this order of precedence.

    Args:
        flags: by field name, as text or already converted. A flag that was not given is None or absent, never False.
        config_file: the file that `--config` names.

    Raises:
        ConfigurationError: it has one sentence for each mistake.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    in_file = {} if config_file is None else _read_file(config_file)
    unknown = unknown_variables(os.environ)
    if unknown:
        raise ConfigurationError(unknown)

    class Layered(BrokerSettings):
        """The settings class for this start, which reads `config_file`."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=in_file)

    try:
        return Layered(**given)
    except ValidationError as error:
        problems = [_sentence(details, given, config_file) for details in error.errors()]
        raise ConfigurationError(problems) from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return one sentence for each variable that looks like a setting and is none. Empty ones count as not set."""
    known = [*map(variable_of, BrokerSettings.model_fields), *sorted(CLIENT_VARIABLES)]
    # A variable in lower case sets a field, too, so a typo in lower case is a mistake as well.
    unknown = [
        name
        for name, value in environment.items()
        if value
        and name.upper().startswith(ENVIRONMENT_PREFIX)
        and name.upper() not in known
        and not _KUBERNETES.fullmatch(name)
    ]
    return [f"The environment variable {name} is unknown. {_hint(name.upper(), known, 'names')}" for name in unknown]


def flag_of(field: str) -> str:
    """Return a field's flag: `--data-dir` for `data_dir`."""
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    """Return a field's environment variable: `TIDEWIRE_DATA_DIR` for `data_dir`."""
    return ENVIRONMENT_PREFIX + field.upper()


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError([f"The configuration file {path} cannot be read: {error.strerror}."]) from None
    except UnicodeDecodeError:
        raise ConfigurationError([f"The configuration file {path} is not UTF-8 text."]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError([f"The configuration file {path} is not valid TOML: {error}."]) from None
    problems = [_unknown_key(path, key) for key in values if key not in BrokerSettings.model_fields]
    if problems:
        raise ConfigurationError(problems)
    return values


def _unknown_key(path: Path, key: str) -> str:
    hint = _hint(key.replace("-", "_"), list(BrokerSettings.model_fields), "keys")
    return f"The configuration file {path} has an unknown key {key}. {hint}"


def _hint(name: str, known: Sequence[str], what: str) -> str:
    # The prefix that all variables share would make all of them look alike.
    bare = {one.removeprefix(ENVIRONMENT_PREFIX): one for one in known}
    close = [bare[one] for one in difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), bare, n=1)]
    return f"Did you mean {close[0]}?" if close else f"Known {what} are {', '.join(known)}."


def _sentence(details: ErrorDetails, flags: Mapping[str, Any], config_file: Path | None) -> str:
    if not details["loc"]:
        return details["msg"]  # A message about several fields is already a whole sentence.
    field = str(details["loc"][0])
    if field in flags:
        origin = f"The flag {flag_of(field)}"
    elif os.environ.get(variable_of(field)):
        origin = f"The environment variable {variable_of(field)}"
    else:
        origin = f"The key {field} in {config_file}"
    if details["type"] == "extra_forbidden":
        return f"There is no setting {field}."
    return f"{origin} cannot be {shown(details['input'])}: {problem_of(details)}."
