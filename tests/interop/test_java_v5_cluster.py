"""The unmodified Java v5 client plays scenarios against three brokers: segments move, owners and controllers change.

It is the program of `test_java_v5`. Here it meets a cluster on the embedded store, whose brokers advertise other
addresses than they listen on. It plays those scenarios of one broker in which another broker may have a part, and those
that need a cluster. For these it asks for the following, one line each, and waits for the answer.

| request            | what is done                                                                      |
|--------------------|-----------------------------------------------------------------------------------|
| RESTART            | the owner of most segments dies, others take over, and it is started again        |
| KILL claim         | the owner of that claim dies likewise                                             |
| MOVE topic         | each segment of the topic is moved to the next broker                             |
| DEPOSE topic       | another broker becomes the topic's controller, and the former one goes on         |
"""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import orjson
import pytest
import trio

from broker.names import TopicName
from scripts.need import place
from tests.interop.test_java_v5 import STDERR_CHARACTERS_MAX, program_in
from tests.support.http import request
from tests.support.real_cluster import EMBEDDED, RealCluster, running_cluster

SECONDS_MAX: Final = 540
pytestmark = [pytest.mark.interop, pytest.mark.timeout(SECONDS_MAX + 60)]

SETTINGS: Final = (
    'session_timeout_seconds = 120\nadvertised_pulsar = "localhost:0"\nconsumer_session_grace_seconds = 8\n'
)

SCENARIOS: Final = (
    "queue_consumers_share_through_split",
    "stream_consumers_share_through_split",
    "stream_consumer_that_stays_away_is_replaced",
    "checkpoint_group_through_split",
    "seek_to_before_a_split",
    "sends_in_flight_at_split",
    "transaction_across_two_splits",
    "order_of_keys_through_split_and_merge",
    "ack_on_merged_parents_in_transaction",
    "transaction_over_two_topics",
    "consume_and_produce_across_split",
    "migrated_subscriptions_keep_their_place",
    "moved_segments_are_followed",
    "new_controller_is_followed",
    "transaction_outlives_its_coordinator",
    "open_transaction_survives_kill",
    "sends_under_way_at_kill_come_once",
)
"""What is played."""


async def test_the_java_client_follows_what_moves_between_brokers(tmp_path: Path) -> None:
    """C14, C15, C21, D1, D10, D17, E13, E17: each scenario judges content, order and errors by itself."""
    lines: list[str] = []
    stderr_path = tmp_path / "program.stderr"
    with trio.fail_after(SECONDS_MAX), stderr_path.open("wb") as stderr:
        async with running_cluster(tmp_path, *EMBEDDED, settings=SETTINGS) as cluster:
            where = (cluster.url(), cluster.any.http_url)
            program = await trio.lowlevel.open_process(
                [*program_in(place("pulsar-java-client")), *where, "--cluster", "--restarts", *SCENARIOS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
            try:
                await answer(program, cluster, lines)
                await program.wait()
            finally:
                program.kill()
            said = stderr_path.read_text(encoding="utf-8", errors="replace")[-STDERR_CHARACTERS_MAX:]
            assert [line for line in lines if line.startswith("FAIL ")] == [], said
            assert sorted(line.split()[1] for line in lines if line.startswith("PASS ")) == sorted(SCENARIOS), said


async def answer(program: trio.Process, cluster: RealCluster, lines: list[str]) -> None:
    """Do what the program asks for, and collect its other lines, until it ends."""
    assert program.stdout is not None
    assert program.stdin is not None
    async for line in lines_of(program.stdout):
        asked, _, what = line.partition(" ")
        if asked == "RESTART":
            owned = await cluster.owned()
            await die(cluster, max(owned, key=owned.__getitem__))
        elif asked == "KILL":
            await die(cluster, (await cluster.claims())[what])
        elif asked == "MOVE":
            await move(cluster, TopicName.parse(what))
        elif asked == "DEPOSE":
            await depose(cluster, what)
        else:
            lines.append(line)
            continue
        await program.stdin.send_all(b"RESTARTED\n" if asked == "RESTART" else b"DONE\n")


async def lines_of(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """Yield the lines that come, until the end."""
    received = b""
    async for data in stream:
        *whole, received = (received + data).split(b"\n")
        for line in whole:
            yield line.decode()


async def die(cluster: RealCluster, broker: str) -> None:
    """Kill a broker, and start it again when its claims have ended."""
    await cluster.kill(broker)
    await cluster.until_gone(broker)
    await cluster.start(broker)


async def move(cluster: RealCluster, topic: TopicName) -> None:
    """Move each loaded segment of the topic to the next broker."""
    names = list(cluster.brokers)
    claims = await cluster.claims_now()
    mine = {
        name: owner
        for name, owner in claims.items()
        if name.startswith("segment://") and TopicName.parse(name).scalable_topic == topic
    }
    assert mine, "nobody owns any of its segments"
    for name, owner in mine.items():
        to = names[(names.index(owner) + 1) % len(names)]
        await ask(cluster, "POST", "/move", {"topic": name, "to": to})
    moved = await cluster.claims_now()
    assert all(moved.get(name) != owner for name, owner in mine.items()), "they moved"


async def depose(cluster: RealCluster, topic: str) -> None:
    """Let the topic's controller give it up, and elect another one: the first that a client needs."""
    controller = (await cluster.claims())[topic]
    await ask(cluster, "POST", f"/brokers/{controller}/drain")
    await cluster.until(lambda claims: claims.get(topic) not in {None, controller})
    await ask(cluster, "DELETE", f"/brokers/{controller}/drain")


async def ask(cluster: RealCluster, method: str, path: str, content: object = None) -> None:
    answered = await request(cluster.any.http, method, f"/admin/v2/cluster{path}", body=orjson.dumps(content))
    assert answered.status == 204, answered.body
