"""Settings: which source wins, and one clear sentence for each mistake."""

from pathlib import Path

import pytest

from broker.addresses import Address
from broker.config import BrokerSettings, ConfigurationError, MetricsLabels, flag_of, load_settings, variable_of


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in BrokerSettings.model_fields:
        monkeypatch.delenv(variable_of(field), raising=False)


def problems(flags: dict[str, object] | None = None, config_file: Path | None = None) -> tuple[str, ...]:
    """Return the sentences that an operator reads."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(flags or {}, config_file)
    for sentence in caught.value.problems:
        assert "\n" not in sentence
        assert sentence.endswith((".", "?"))
    return caught.value.problems


def written(folder: Path, text: str) -> Path:
    path = folder / "tidewire.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_defaults_serve_this_machine_alone() -> None:
    settings = load_settings({})
    assert settings.pulsar == Address("127.0.0.1", 6650)
    assert settings.http == Address("127.0.0.1", 8080)
    assert settings.data_dir == Path("data")
    assert settings.metadata == "embedded"
    assert not settings.allow_unauthenticated
    assert settings.message_bytes_max == 5 * 1024 * 1024


def test_flags_win_over_the_environment_over_the_file_over_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, 'broker_id = "file"\ncluster = "file"\ntransaction_coordinators = 4\n')
    monkeypatch.setenv("TIDEWIRE_BROKER_ID", "environment")
    monkeypatch.setenv("TIDEWIRE_CLUSTER", "environment")

    settings = load_settings({"broker_id": "flag", "cluster": None}, file)

    assert settings.broker_id == "flag"
    assert settings.cluster == "environment"
    assert settings.transaction_coordinators == 4
    assert settings.default_initial_segments == 1


def test_every_field_can_be_given_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "data_dir": "/srv/tide", "broker_id": "b7", "cluster": "c", "pulsar": "[::1]:0", "http": "127.0.0.1:0",
        "advertised_pulsar": "b7.example:0", "allow_unauthenticated": "true",
        "kafka": "127.0.0.1:2", "advertised_kafka": "b7.example:1", "kafka_namespace": "t/n", "kafka_partitions": "4",
        "metadata": "etcd://[::1]:1, e:2", "metadata_connect_seconds_max": "3",
        "session_timeout_seconds": "2",
        "journal_file_bytes_max": "1MiB", "ledger_bytes_max": "2MiB",
        "ledger_age_seconds_max": "1.5", "message_bytes_max": "1KiB", "default_initial_segments": "3",
        "transaction_coordinators": "2", "txn_timeout_seconds_max": "9", "txn_retention_seconds": "0",
        "retention_minutes": "7", "retention_megabytes": "-1",
        "segment_retention_seconds": "5", "auto_scale": "false", "deduplication": "true",
        "consumer_session_grace_seconds": "0.5", "http_hosts": "b7.example, ::1",
        "connections_max": "7", "client_memory_bytes_max": "16MiB", "processes": "3",
        "log_format": "json", "log_level": "debug",
        "metrics_labels": "namespace", "metrics_series_max": "7",
    }  # fmt: skip
    # This one is for embedded metadata alone.
    assert texts.keys() | {"internal"} == BrokerSettings.model_fields.keys()
    expected = {
        "data_dir": Path("/srv/tide"), "broker_id": "b7", "cluster": "c", "pulsar": Address("::1", 0),
        "http": Address("127.0.0.1", 0), "advertised_pulsar": Address("b7.example", 0), "internal": None,
        "kafka": Address("127.0.0.1", 2), "advertised_kafka": Address("b7.example", 1),
        "kafka_namespace": "t/n", "kafka_partitions": 4,
        "allow_unauthenticated": True,
        "metadata": "etcd://[::1]:1,e:2", "metadata_connect_seconds_max": 3.0,
        "session_timeout_seconds": 2.0,
        "journal_file_bytes_max": 1 << 20, "ledger_bytes_max": 2 << 20, "ledger_age_seconds_max": 1.5,
        "message_bytes_max": 1024, "default_initial_segments": 3, "transaction_coordinators": 2,
        "txn_timeout_seconds_max": 9.0, "txn_retention_seconds": 0.0, "segment_retention_seconds": 5.0,
        "retention_minutes": 7, "retention_megabytes": -1,
        "auto_scale": False, "deduplication": True, "consumer_session_grace_seconds": 0.5,
        "http_hosts": ("b7.example", "::1"), "connections_max": 7, "client_memory_bytes_max": 16 << 20,
        "processes": 3, "log_format": "json", "log_level": "debug",
        "metrics_labels": MetricsLabels.NAMESPACE, "metrics_series_max": 7,
    }  # fmt: skip

    def values(settings: BrokerSettings) -> dict[str, object]:
        return {field: getattr(settings, field) for field in BrokerSettings.model_fields}

    assert values(load_settings(texts)) == expected
    file = written(tmp_path, "".join(f'{field} = "{text}"\n' for field, text in texts.items()))
    assert values(load_settings({}, file)) == expected
    for field, text in texts.items():
        monkeypatch.setenv(variable_of(field), text)
    assert values(load_settings({})) == expected


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWIRE_PULSAR", "")
    assert load_settings({}).pulsar == Address("127.0.0.1", 6650)


def test_a_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert load_settings({"data_dir": "~/tide"}).data_dir == Path("/home/ann/tide")


def test_flags_and_variables_are_spelled_after_their_field() -> None:
    assert flag_of("data_dir") == "--data-dir"
    assert variable_of("data_dir") == "TIDEWIRE_DATA_DIR"


def test_kafka_clients_are_served_unless_they_are_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings({}).kafka == Address("127.0.0.1", 9092)
    assert load_settings({"kafka": "none"}).kafka is None
    assert load_settings({}, written(tmp_path, 'kafka = "none"')).kafka is None
    monkeypatch.setenv("TIDEWIRE_KAFKA", "none")
    assert load_settings({}).kafka is None
    assert load_settings({"kafka": "127.0.0.1:1"}).kafka == Address("127.0.0.1", 1)
    assert "or give none" in problems({"kafka": "nowhere"})[0]
    # Every broker needs the other two.
    assert "HOST:PORT" in problems({"pulsar": "none"})[0]
    assert "HOST:PORT" in problems({"http": "none"})[0]


@pytest.mark.parametrize("field", ["pulsar", "http", "kafka"])
def test_a_listener_off_loopback_has_to_be_accepted(field: str) -> None:
    (sentence,) = problems({field: "0.0.0.0:7000"})
    assert flag_of(field) in sentence
    assert "0.0.0.0:7000" in sentence
    assert "--allow-unauthenticated" in sentence

    accepted = load_settings({field: "0.0.0.0:7000", "allow_unauthenticated": True})
    assert getattr(accepted, field) == Address("0.0.0.0", 7000)


def test_with_etcd_other_brokers_are_told_an_address_that_exists() -> None:
    """C21: nobody can connect to a wildcard, so another broker must not send clients there."""
    etcd = {"metadata": "etcd://127.0.0.1:2379", "allow_unauthenticated": True}
    for wildcard in ("0.0.0.0:7000", "[::]:7000"):
        (sentence,) = problems({**etcd, "pulsar": wildcard})
        assert wildcard in sentence
        assert "--advertised-pulsar" in sentence
        load_settings({**etcd, "pulsar": wildcard, "advertised_pulsar": "broker.example:0"})
        load_settings({"allow_unauthenticated": True, "pulsar": wildcard})
    for metadata in ("embedded", etcd["metadata"]):
        (sentence,) = problems({**etcd, "metadata": metadata, "advertised_pulsar": "0.0.0.0:7000"})
        assert "0.0.0.0:7000" in sentence


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("data_dir = 5", "it must be text"),
        ('data_dir = "a\\u0000b"', "NUL"),
        ('data_dir = "~nobody-of-this-name/x"', "home folder"),
        ('broker_id = "../x"', "letters, digits"),
        ('broker_id = ""', "letters, digits"),
        ('broker_id = "x\\n"', "letters, digits"),
        ('pulsar = "6650"', "HOST:PORT"),
        ("pulsar = 6650", "it must be text such as"),
        ('http = "::1:8080"', "brackets"),
        ('advertised_pulsar = "x"', "HOST:PORT"),
        ('allow_unauthenticated = "perhaps"', "true or false"),
        ('metadata = "paper"', "must be embedded"),
        ("metadata = 5", "must be embedded"),
        ('metadata = "etcd://"', "HOST:PORT"),
        ('metadata = "etcd://a:1,"', "HOST:PORT"),
        ('metadata = "etcd://a:0"', "port must be from 1"),
        ("metadata_connect_seconds_max = 0", "greater than 0"),
        ("session_timeout_seconds = 1.9", "at least 2"),
        ("session_timeout_seconds = 301", "at most 300"),
        ('journal_file_bytes_max = "3 parsecs"', "a size such as 64MiB"),
        ("journal_file_bytes_max = 1", "at least 1,048,576"),
        ("message_bytes_max = 5242881", "at most 5,242,880"),
        ("transaction_coordinators = 1.5", "a whole number"),
        ("transaction_coordinators = true", "only a switch"),
        ('transaction_coordinators = "many"', "a whole number"),
        ("ledger_age_seconds_max = 0", "greater than 0"),
        ("txn_retention_seconds = -1", "at least 0"),
        ("txn_timeout_seconds_max = inf", "a number"),
        ("txn_timeout_seconds_max = nan", "a number"),
        ('txn_timeout_seconds_max = "soon"', "a number"),
        ("default_initial_segments = [1]", "a whole number"),
    ],
)
def test_a_wrong_value_in_the_file_is_one_sentence(tmp_path: Path, line: str, problem: str) -> None:
    file = written(tmp_path, line)
    (sentence,) = problems(config_file=file)
    assert sentence.startswith(f"The key {line.split()[0]} in {file} cannot be ")
    assert problem in sentence


def test_every_mistake_is_told_with_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWIRE_HTTP", "nowhere")
    file = written(tmp_path, 'pulsar = "wrong, but the flag wins"\nmetadata = "paper"')

    told = problems({"pulsar": "x"}, file)

    assert [sentence.split(" cannot be ")[0] for sentence in told] == [
        "The flag --pulsar",
        "The environment variable TIDEWIRE_HTTP",
        f"The key metadata in {file}",
    ]


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    first, second = problems(config_file=written(tmp_path, 'data-dir = "x"\n[broker]\nhttp = "x"\n'))
    assert first.endswith("unknown key data-dir. Did you mean data_dir?")
    assert "unknown key broker. " in second


def test_an_unknown_variable_is_refused_with_the_nearest_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWIRE_DATADIR", "x")
    monkeypatch.setenv("tidewire_brokerid", "x")
    monkeypatch.setenv("TIDEWIRE_QQ", "x")
    second, first, third = sorted(problems())
    assert third.endswith("variable tidewire_brokerid is unknown. Did you mean TIDEWIRE_BROKER_ID?")
    assert second.endswith("variable TIDEWIRE_DATADIR is unknown. Did you mean TIDEWIRE_DATA_DIR?")
    assert "variable TIDEWIRE_QQ is unknown. Known names are TIDEWIRE_DATA_DIR, " in first


def test_variables_of_other_commands_and_of_kubernetes_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "TIDEWIRE_HTTP_URL", "TIDEWIRE_SERVICE_URL", "TIDEWIRE_SERVICE_HOST", "TIDEWIRE_SERVICE_PORT",
        "TIDEWIRE_PORT", "TIDEWIRE_PORT_6650_TCP", "TIDEWIRE_PORT_6650_TCP_ADDR", "TIDEWIRE_SERVICE_PORT_PULSAR",
    ):  # fmt: skip
        monkeypatch.setenv(name, "tcp://10.0.0.1:6650")
    monkeypatch.setenv("TIDEWIRE_NOTHING", "")
    assert load_settings({}).data_dir == Path("data")


def test_an_unknown_flag_is_refused() -> None:
    assert problems({"color": "blue"}) == ("There is no setting color.",)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (missing,) = problems(config_file=tmp_path / "missing.toml")
    assert "missing.toml cannot be read: No such file" in missing
    (folder,) = problems(config_file=tmp_path)
    assert "cannot be read" in folder
    (syntax,) = problems(config_file=written(tmp_path, "pulsar = \n"))
    assert "not valid TOML" in syntax
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    (encoding,) = problems(config_file=binary)
    assert "not UTF-8" in encoding


def test_a_long_value_is_shown_in_part() -> None:
    (sentence,) = problems({"pulsar": "x" * 10_000})
    assert len(sentence) < 300


def test_settings_do_not_change() -> None:
    settings = load_settings({})
    with pytest.raises(ValueError, match="frozen"):
        settings.broker_id = "other"


def test_brokers_meet_at_an_internal_address_or_in_etcd() -> None:
    """C23: several processes share either store. Others can connect to an internal address."""
    etcd = {"metadata": "etcd://127.0.0.1:2379"}
    assert load_settings({"processes": 2, **etcd}).processes == 2
    assert load_settings({"processes": 2}).processes == 2
    assert load_settings({"internal": "127.0.0.1:0"}).internal == Address("127.0.0.1", 0)
    assert "--internal" in problems({"internal": "127.0.0.1:0", **etcd})[0]
    (sentence,) = problems({"internal": "0.0.0.0:7000", "allow_unauthenticated": True})
    assert "Nobody can connect" in sentence
    assert "--allow-unauthenticated" in problems({"internal": "192.0.2.1:0"})[0]
    wildcard = {"pulsar": "0.0.0.0:0", "allow_unauthenticated": True}
    assert "--advertised-pulsar" in problems({"internal": "127.0.0.1:0", **wildcard})[0]
    assert load_settings(wildcard).internal is None
