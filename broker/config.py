"""The broker's settings, and every way to give them.

Command-line flags win over `TIDEWIRE_*` environment variables, these over the TOML file that `--config` names, and that
over the defaults. One class describes them all: a field `data_dir` is the flag `--data-dir`, the variable
`TIDEWIRE_DATA_DIR` and the key `data_dir` at the top level of the file. Sizes are bytes or text such as "64MiB".

An operator's mistake becomes a `ConfigurationError` with one sentence per mistake, each naming where the value came
from; nothing is guessed, and an unknown key in the file is a mistake, while unknown environment variables are not ours
to judge. Settings do not change while a broker runs.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

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
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from broker.addresses import Address
from broker.metadata_setting import EMBEDDED, check_metadata

ENVIRONMENT_PREFIX: Final = "TIDEWIRE_"

_SWITCHES: Final = frozenset({"allow_unauthenticated", "auto_scale", "deduplication"})
_PLAIN_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_GIB: Final = 1024 * _MIB


class ConfigurationError(Exception):
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


def _hosts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [host.strip() for host in value.split(",")]
    if not isinstance(value, list | tuple) or not all(isinstance(host, str) for host in value):
        raise ValueError("it must be host names with commas between, such as broker-1.example,192.0.2.7")
    for host in value:
        try:
            Address.parse(f"[{host}]:0" if ":" in host else f"{host}:0")
        except ValueError:
            raise ValueError(f"{host!r} is neither an IP address nor a host name; leave out ports") from None
    return tuple(value)


def _folder(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path holds no NUL character")
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("the home folder that ~ stands for is unknown") from None


# NoDecode: an address is a tuple, which would otherwise have to stand in the environment as JSON.
AddressSetting = Annotated[Address, NoDecode, PlainValidator(_address)]


class BrokerSettings(BaseSettings):
    """What one broker runs with. Use `load_settings`, which knows the file and words the errors.

    Raises:
        ValidationError: pydantic's own, when constructed directly.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
    )

    data_dir: Annotated[Path, AfterValidator(_folder)] = Path("data")
    """The folder of ledgers, metadata and this broker's journal; made when missing. Brokers of one cluster share it."""
    broker_id: str = Field("broker-1", pattern=_PLAIN_NAME)
    """Unique among the brokers of a cluster, and the same after a restart: it names the journal's folder."""
    cluster: str = Field("tidewire", pattern=_PLAIN_NAME)
    """The cluster's name, as administrators' tools show it."""

    pulsar: AddressSetting = Address("127.0.0.1", 6650)
    """Where the Pulsar protocol is served."""
    http: AddressSetting = Address("127.0.0.1", 8080)
    """Where administration and metrics are served."""
    http_hosts: Annotated[tuple[str, ...], NoDecode, PlainValidator(_hosts)] = ()
    """Names or IP addresses, with commas between, by which HTTP clients may call this broker beside its own addresses.
    Any other is refused, since a web page could have its own name stand for the broker's address."""
    advertised_pulsar: AddressSetting | None = None
    """What clients are told to connect to, when it is not the listener's own address (see `advertised_address`)."""
    allow_unauthenticated: bool = False
    """Accept that whoever can reach a listener may do everything. Needed for any listener off loopback."""

    metadata: Annotated[str, PlainValidator(check_metadata)] = EMBEDDED
    """Where metadata lives: `embedded` is in `data_dir`, beside the ledgers; `etcd://HOST:PORT,HOST:PORT` in etcd."""
    metadata_connect_seconds_max: float = Field(60.0, gt=0, allow_inf_nan=False)
    """How long a start tries to reach etcd."""
    journal_file_bytes_max: ByteSize = Field(ByteSize(64 * _MIB), ge=_MIB, le=16 * _GIB)
    """A journal file that has grown beyond this is followed by a new one."""
    ledger_bytes_max: ByteSize = Field(ByteSize(256 * _MIB), ge=_MIB, le=1024 * _GIB)
    """A topic's ledger that has grown beyond this is followed by a new one."""
    ledger_age_seconds_max: float = Field(4 * 3600.0, gt=0, allow_inf_nan=False)
    """A topic's ledger that is older than this, and not empty, is followed by a new one."""
    message_bytes_max: ByteSize = Field(ByteSize(5 * _MIB), ge=_KIB, le=5 * _MIB)
    """The largest message, or batch of messages, that a producer may send. Clients are told when they connect."""

    connections_max: int = Field(10_000, ge=1, le=1_000_000)
    """Connections of Pulsar clients at a time; one more is refused. Fewer if the process may not open so many files."""
    client_memory_bytes_max: ByteSize = Field(ByteSize(512 * _MIB), ge=16 * _MIB, le=1024 * _GIB)
    """Memory for what clients sent and is not stored yet, and for what waits for clients to read it; half for each.
    At the bound, clients that hold much of it wait."""

    deduplication: bool = False
    """Store what a producer sends again once on persistent:// topics too (Pulsar's brokerDeduplicationEnabled)."""
    default_initial_segments: int = Field(1, ge=1, le=1024)
    """Segments of a new scalable topic whose creator does not say how many."""
    auto_scale: bool = True
    """Split and merge scalable topics by load and consumers, where a topic does not say otherwise (PIP-483)."""
    retention_minutes: int = Field(-1, ge=-1, le=2**31 - 1)
    """How long messages stay that every subscription has acknowledged, where neither topic nor namespace says otherwise
    (Pulsar's defaultRetentionTimeInMinutes); -1: for ever. 0 needs `retention_megabytes` 0: they go at once, whole
    ledgers at a time. Without subscriptions, all messages count as acknowledged."""
    retention_megabytes: int = Field(-1, ge=-1, le=2**31 - 1)
    """How many MiB of such messages stay in each topic or segment (Pulsar's defaultRetentionSizeInMB); -1: all."""
    segment_retention_seconds: float = Field(7 * 86_400.0, ge=0, allow_inf_nan=False)
    """How long a segment that was split or merged is kept at least. After that it is removed with its messages as soon
    as every subscription has drained it; without subscriptions it stays."""
    consumer_session_grace_seconds: float = Field(60.0, ge=0, le=86_400.0)
    """How long an ordered consumer whose connection is lost keeps its segments, so that none moves when it comes back
    (Pulsar's scalableTopicConsumerSessionGracePeriodSeconds). One that closes leaves at once."""
    transaction_coordinators: int = Field(16, ge=1, le=1024)
    """Coordinators that clients spread their transactions over. Raise it at will; lower it when none is open."""
    txn_timeout_seconds_max: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """The longest timeout a transaction may ask for: an open one holds back every reader of its topics."""
    txn_retention_seconds: float = Field(60.0, ge=0, allow_inf_nan=False)
    """How long a finished transaction's outcome can still be asked for."""

    @field_validator("*", mode="before")
    @classmethod
    def _only_switches_are_true_or_false(cls, value: object, info: ValidationInfo) -> object:
        # Pydantic would take true for 1, which nobody means who writes a number's name.
        if isinstance(value, bool) and info.field_name not in _SWITCHES:
            raise ValueError("only a switch can be true or false")
        return value

    @model_validator(mode="after")
    def _no_retention_is_said_twice(self) -> "BrokerSettings":
        if (self.retention_minutes == 0) != (self.retention_megabytes == 0):
            raise PydanticCustomError(
                "retention", "retention_minutes and retention_megabytes are both 0, or neither of them is."
            )
        return self

    @model_validator(mode="after")
    def _listeners_off_loopback_are_wanted(self) -> "BrokerSettings":
        if self.allow_unauthenticated:
            return self
        for name, address in (("pulsar", self.pulsar), ("http", self.http)):
            if not address.is_loopback:
                raise PydanticCustomError(
                    "unauthenticated",
                    "{flag} {address} can be reached by other machines, and anyone there could do everything: listen "
                    "on 127.0.0.1, or accept that with --allow-unauthenticated.",
                    {"flag": flag_of(name), "address": str(address)},
                )
        return self


def load_settings(flags: Mapping[str, Any], config_file: Path | None = None) -> BrokerSettings:
    """Settings from flags, the environment, a file and the defaults, in this order of precedence.

    Args:
        flags: by field name, as text or already converted; None for a flag that was not given (so a switch that was
            not given must not be False).
        config_file: what `--config` names.

    Raises:
        ConfigurationError: with one sentence per mistake.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    in_file = {} if config_file is None else _read_file(config_file)

    class Layered(BrokerSettings):
        """The settings of this one start: the class that knows its file."""

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


def flag_of(field: str) -> str:
    """`data_dir` as it is spelled on the command line: `--data-dir`."""
    return "--" + field.replace("_", "-")


def variable_of(field: str) -> str:
    """`data_dir` as it is spelled in the environment: `TIDEWIRE_DATA_DIR`."""
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
    close = difflib.get_close_matches(key.replace("-", "_"), BrokerSettings.model_fields, n=1)
    hint = f"did you mean {close[0]}?" if close else "known are " + ", ".join(BrokerSettings.model_fields) + "."
    return f"The configuration file {path} has an unknown key {key}: {hint}"


def _sentence(details: ErrorDetails, flags: Mapping[str, Any], config_file: Path | None) -> str:
    if not details["loc"]:
        return details["msg"]  # About several fields together; it is a whole sentence already.
    field = str(details["loc"][0])
    if field in flags:
        origin = f"The flag {flag_of(field)}"
    elif os.environ.get(variable_of(field)):
        origin = f"The environment variable {variable_of(field)}"
    else:
        origin = f"The key {field} in {config_file}"
    if details["type"] == "extra_forbidden":
        return f"There is no setting {field}."
    return f"{origin} cannot be {_shown(details['input'])}: {_problem(details)}."


def _problem(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    match details["type"]:
        case "value_error":
            return str(context["error"])
        case "bool_parsing" | "bool_type":
            return "it must be true or false"
        case "int_parsing" | "int_type" | "int_from_float":
            return "it must be a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "it must be a number"
        case "byte_size" | "byte_size_unit":
            return "it must be a size such as 64MiB"
        case "greater_than_equal":
            return f"it must be at least {context['ge']:,.15g}"
        case "greater_than":
            return f"it must be greater than {context['gt']:,.15g}"
        case "less_than_equal":
            return f"it must be at most {context['le']:,.15g}"
        case "path_type" | "string_type":
            return "it must be text"
        case "literal_error":
            return f"it must be {context['expected']}"
        case "string_pattern_mismatch":
            return "it must be 1 to 64 of letters, digits and . _ - and begin with a letter or digit"
        case _:
            return details["msg"][0].lower() + details["msg"][1:]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "…"
