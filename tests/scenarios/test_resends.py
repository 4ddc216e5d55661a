"""The unmodified Python `pulsar-client` resends what was unanswered when its broker died; it is stored once."""

from functools import partial
from pathlib import Path

import pulsar
import trio

from tests.scenarios.test_pulsar_client import expect_nothing, receive_all
from tests.support.processes import running_broker
from tests.support.proxy import open_proxy

TOPIC = "persistent://public/default/resends"


async def test_what_is_sent_again_after_a_kill_is_stored_once(tmp_path: Path) -> None:
    """D8: with --deduplication, in order and without copies, although receipts were lost with the broker."""
    in_thread = trio.to_thread.run_sync
    async with open_proxy("127.0.0.1:0") as proxy:
        with running_broker(tmp_path / "data", "--deduplication", "--advertised-pulsar", proxy.endpoint) as broker:
            proxy.serve(broker.service_url.removeprefix("pulsar://"))
            logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            client = pulsar.Client(f"pulsar://{proxy.endpoint}", logger=logger)
            producer = await in_thread(partial(client.create_producer, TOPIC, batching_enabled=False))
            sent = [f"{number}".encode() for number in range(50)]
            await in_thread(producer.send, sent[0])
            proxy.mute()
            for value in sent[1:]:
                producer.send_async(value, callback=lambda _result, _message_id: None)
            # So some of them are stored, and their client does not know.
            await proxy.answer_lost()
            broker.kill()
            broker.restart()
            proxy.serve(broker.service_url.removeprefix("pulsar://"))
            proxy.mend()
            await in_thread(producer.flush)
            consumer = await in_thread(
                partial(client.subscribe, TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
            )
            assert await in_thread(receive_all, consumer, len(sent)) == sent
            await in_thread(expect_nothing, consumer)
            await in_thread(client.close)
