"""An application with Pulsar's Python client encrypts its messages; the broker has no key."""

import subprocess
from pathlib import Path

import pulsar
import pytest

from scripts.need import place
from tests.scenarios.test_pulsar_client import connected, expect_nothing, receive_all
from tests.support.processes import running_broker

TOPIC = "persistent://public/default/secrets"


@pytest.fixture
def keys(tmp_path: Path) -> pulsar.CryptoKeyReader:
    """Make a pair of keys."""
    place("debian:openssl")
    secret, public = tmp_path / "secret.pem", tmp_path / "public.pem"
    for arguments in (["genrsa", "-out", secret, "2048"], ["rsa", "-in", secret, "-pubout", "-out", public]):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
    return pulsar.CryptoKeyReader(str(public), str(secret))


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_only_the_holder_of_the_key_reads_the_messages(
    tmp_path: Path, keys: pulsar.CryptoKeyReader, *, batching: bool
) -> None:
    """E20: the producer's flag `encrypted` asks the broker for nothing, so it is not refused."""
    values = [f"{number}".encode() for number in range(5)]
    with running_broker(tmp_path / "data") as broker, connected(broker) as client:
        producer = client.create_producer(
            TOPIC, encryption_key="mine", crypto_key_reader=keys, batching_enabled=batching
        )
        for value in values:
            producer.send_async(value, callback=lambda _result, _message_id: None)
        producer.flush()
        start = pulsar.InitialPosition.Earliest
        holder = client.subscribe(TOPIC, "holder", initial_position=start, crypto_key_reader=keys)
        assert receive_all(holder, len(values)) == values
        expect_nothing(client.subscribe(TOPIC, "stranger", initial_position=start))
