package tidewire.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Several consumers of one subscription, and what happens to the segments of those that come and go. */
final class SharingScenarios {
    private SharingScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("stream_consumers_share_segments", SharingScenarios::shareSegments);
        scenarios.put("stream_consumer_joins", SharingScenarios::joins);
        scenarios.put("stream_consumer_leaves", SharingScenarios::leaves);
        scenarios.put("stream_consumers_share_through_split", SharingScenarios::shareThroughSplit);
        scenarios.put("stream_consumer_loses_its_client", SharingScenarios::losesItsClient);
        scenarios.put("stream_consumer_is_waited_for", SharingScenarios::isWaitedFor);
        scenarios.put("stream_consumer_that_stays_away_is_replaced", SharingScenarios::isReplaced);
        scenarios.put("queue_consumer_leaves_messages_to_other", SharingScenarios::queueLeaves);
        scenarios.put("queue_consumers_share_through_split", SharingScenarios::queuesShareThroughSplit);
        scenarios.put("stream_from_latest", SharingScenarios::streamFromLatest);
        scenarios.put("queue_from_latest", SharingScenarios::queueFromLatest);
        scenarios.put("stream_from_latest_through_split", SharingScenarios::latestThroughSplit);
    }

    /** What each of several stream consumers got, all of it acknowledged as it came. */
    private static Map<StreamConsumer<String>, List<Message<String>>> receive(
            List<StreamConsumer<String>> consumers, int count) throws Exception {
        Map<StreamConsumer<String>, List<Message<String>>> received = new HashMap<>();
        consumers.forEach(consumer -> received.put(consumer, new ArrayList<>()));
        int got = 0;
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (got < count && System.nanoTime() < deadline) {
            for (StreamConsumer<String> consumer : consumers) {
                got += take(consumer, received.get(consumer), Limits.TURN);
            }
        }
        for (StreamConsumer<String> consumer : consumers) {
            take(consumer, received.get(consumer), Limits.QUIET);
        }
        return received;
    }

    /** What several stream consumers got together, acknowledged as it came. */
    static List<Message<String>> receiveFrom(List<StreamConsumer<String>> consumers, int count) throws Exception {
        return all(receive(consumers, count));
    }

    /**
     * Sends rounds until each of two consumers gets the messages of half of the keys, and returns what they got of the
     * last round. A segment's move takes a moment in which its old consumer may still be sent to, or in which what that
     * has not acknowledged comes to both; but nothing of what was acknowledged before.
     */
    private static Map<StreamConsumer<String>, List<Message<String>>> untilShared(
            Script script, Producer<String> producer, List<String> keys, List<StreamConsumer<String>> consumers,
            Set<String> acknowledged) throws Exception {
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (true) {
            script.forget();
            SplitScenarios.sendRound(script, producer, keys, null);
            var received = receive(consumers, script.size());
            List<String> came = Receiving.values(all(received));
            Failure.unless(Collections.disjoint(came, acknowledged), "what was acknowledged came again: " + came);
            boolean isOnce = came.size() == script.size() && came.containsAll(script.values());
            if (isOnce && consumers.stream().allMatch(one -> keysOf(received.get(one)).size() * 2 == keys.size())) {
                return received;
            }
            Failure.unless(System.nanoTime() < deadline, "they do not share the segments; the last round was " + came);
        }
    }

    private static int take(StreamConsumer<String> consumer, List<Message<String>> received, java.time.Duration wait)
            throws Exception {
        Message<String> message = consumer.receive(wait);
        if (message == null) {
            return 0;
        }
        received.add(message);
        consumer.acknowledgeCumulative(message.id());
        return 1;
    }

    private static List<Message<String>> all(Map<StreamConsumer<String>, List<Message<String>>> received) {
        return received.values().stream().flatMap(List::stream).toList();
    }

    /** Each key goes to one of them only, in order, and each of them has some. */
    private static void shareSegments(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        StreamConsumer<String> one = stage.stream("sub", "one");
        StreamConsumer<String> other = stage.stream("sub", "other");
        Producer<String> producer = stage.producer();
        untilShared(script, producer, keys, List.of(one, other), Set.of());
        script.forget();
        for (int round = 0; round < 3; round++) {
            SplitScenarios.sendRound(script, producer, keys, null);
        }
        var received = receive(List.of(one, other), script.size());
        script.check(all(received));
        Set<String> shared = keysOf(received.get(one));
        shared.retainAll(keysOf(received.get(other)));
        Failure.unless(shared.isEmpty(), "both got messages of the keys " + shared);
        Failure.unless(!received.get(one).isEmpty() && !received.get(other).isEmpty(), "one of them got nothing");
    }

    private static Set<String> keysOf(List<Message<String>> messages) {
        Set<String> keys = new HashSet<>();
        messages.forEach(message -> keys.add(message.key().orElse("")));
        return keys;
    }

    /** Segments move to who joins, without repeating what was acknowledged. */
    private static void joins(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        StreamConsumer<String> one = stage.stream("sub", "one");
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(one, script.size()));
        Set<String> acknowledged = Set.copyOf(script.values());
        StreamConsumer<String> other = stage.stream("sub", "other");
        untilShared(script, producer, keys, List.of(one, other), acknowledged);
        script.forget();
        for (int round = 0; round < 3; round++) {
            SplitScenarios.sendRound(script, producer, keys, null);
        }
        var received = receive(List.of(one, other), script.size());
        script.check(all(received));
        Failure.unless(!received.get(other).isEmpty(), "the one that joined got nothing");
    }

    /** Who stays gets all segments at once, with what the other had not acknowledged. */
    private static void leaves(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        StreamConsumer<String> one = stage.stream("sub", "one");
        StreamConsumer<String> other = stage.stream("sub", "other");
        untilShared(script, producer, keys, List.of(one, other), Set.of());
        script.forget();
        other.close();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(one, script.size()));
    }

    /** T20: between them they get everything once and each key in order. */
    private static void shareThroughSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        StreamConsumer<String> one = stage.stream("sub", "one");
        StreamConsumer<String> other = stage.stream("sub", "other");
        untilShared(script, producer, keys, List.of(one, other), Set.of());
        script.forget();
        stage.split(0);
        stage.split(1);
        for (int round = 0; round < 3; round++) {
            SplitScenarios.sendRound(script, producer, keys, null);
        }
        script.check(all(receive(List.of(one, other), script.size())));
    }

    /** A client that vanishes without a word; its consumer comes back under the same name and goes on. */
    private static void losesItsClient(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        PulsarClient doomed = stage.newClient(Limits.TRANSACTION_TIMEOUT);
        StreamConsumer<String> lost = named(doomed, stage, "reader");
        script.check(Stage.receive(lost, script.size()));
        doomed.shutdown();
        script.forget();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    /** While its consumer is away nobody else reads a segment; when it is back, it has the segments that it had. */
    private static void isWaitedFor(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        PulsarClient doomed = stage.newClient(Limits.TRANSACTION_TIMEOUT);
        StreamConsumer<String> lost = named(doomed, stage, "one");
        StreamConsumer<String> other = stage.stream("sub", "other");
        var before = untilShared(script, producer, keys, List.of(lost, other), Set.of());
        // Acknowledgements are sent a moment later, and nobody waits for them when a client is shut down.
        Thread.sleep(Limits.QUIET.toMillis());
        script.forget();
        vanish(doomed);
        SplitScenarios.sendRound(script, producer, keys, null);
        List<Message<String>> meanwhile = receive(List.of(other), keysOf(before.get(other)).size()).get(other);
        Expect.equal("keys of the one that stays", keysOf(meanwhile), keysOf(before.get(other)));
        StreamConsumer<String> back = stage.stream("sub", "one");
        var after = receive(List.of(back, other), script.size() - meanwhile.size());
        Expect.equal("keys of the one that is back", keysOf(after.get(back)), keysOf(before.get(lost)));
        List<Message<String>> received = new ArrayList<>(meanwhile);
        received.addAll(all(after));
        script.check(received);
    }

    /** Who does not come back is not waited for longer than the grace period. */
    private static void isReplaced(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        PulsarClient doomed = stage.newClient(Limits.TRANSACTION_TIMEOUT);
        StreamConsumer<String> lost = named(doomed, stage, "one");
        StreamConsumer<String> other = stage.stream("sub", "other");
        untilShared(script, producer, keys, List.of(lost, other), Set.of());
        Thread.sleep(Limits.QUIET.toMillis());
        script.forget();
        vanish(doomed);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(all(receive(List.of(other), script.size())));
    }

    /** Its connections end at once, and long before it is done with shutting itself down. */
    private static void vanish(PulsarClient client) throws Exception {
        CompletableFuture.runAsync(client::shutdown);
        Thread.sleep(Limits.MOVE_MAX.toMillis());
    }

    private static StreamConsumer<String> named(PulsarClient client, Stage stage, String name) throws Exception {
        return client.newStreamConsumer(Schema.string())
                .topic(stage.topic)
                .subscriptionName("sub")
                .consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe();
    }

    /** What one holds without having acknowledged it goes to the other when it closes, marked as sent again. */
    private static void queueLeaves(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        QueueConsumer<String> leaving = stage.queue("sub");
        SplitScenarios.sendRound(script, stage.producer(), keys, null);
        List<Message<String>> held = Receiving.exactly(leaving::receive, script.size());
        leaving.acknowledge(held.get(0).id());
        QueueConsumer<String> staying = stage.queue("sub");
        Receiving.nothing(staying::receive, "the other one holds everything");
        leaving.close();
        List<Message<String>> received = Receiving.exactly(staying::receive, script.size() - 1);
        Receiving.sameInAnyOrder("received", Receiving.values(received),
                Receiving.values(held.subList(1, held.size())));
    }

    private static void queuesShareThroughSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        QueueConsumer<String> one = stage.queue("sub");
        QueueConsumer<String> other = stage.queue("sub");
        Producer<String> producer = stage.producer();
        for (int part = 0; part < 3; part++) {
            for (int round = 0; round < 5; round++) {
                SplitScenarios.sendRound(script, producer, keys, null);
            }
            if (part < 2) {
                stage.split(part);
            }
        }
        List<Message<String>> received = new ArrayList<>();
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (received.size() < script.size() && System.nanoTime() < deadline) {
            for (QueueConsumer<String> consumer : List.of(one, other)) {
                Message<String> message = consumer.receive(Limits.TURN);
                if (message != null) {
                    received.add(message);
                    consumer.acknowledge(message.id());
                }
            }
        }
        script.checkContent(received);
        Receiving.nothing(one::receive, "everything came");
        Receiving.nothing(other::receive, "everything came");
    }

    private static void streamFromLatest(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.forget();
        StreamConsumer<String> consumer = latest(stage);
        Stage.expectNothing(consumer, "everything was sent before");
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(consumer, script.size()));
    }

    private static StreamConsumer<String> latest(Stage stage) throws Exception {
        return stage.keep(stage.client.newStreamConsumer(Schema.string())
                .topic(stage.topic)
                .subscriptionName("sub")
                .consumerName("reader")
                .subscriptionInitialPosition(SubscriptionInitialPosition.LATEST)
                .subscribe());
    }

    private static void queueFromLatest(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.forget();
        QueueConsumer<String> consumer = stage.keep(stage.queueBuilder(Schema.string(), stage.topic, "sub")
                .subscriptionInitialPosition(SubscriptionInitialPosition.LATEST).subscribe());
        Receiving.nothing(consumer::receive, "everything was sent before");
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(consumer, script.size()));
    }

    /** T20: a subscription that began at the end misses nothing of the children a split makes afterwards. */
    private static void latestThroughSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.forget();
        StreamConsumer<String> consumer = latest(stage);
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.split(0);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(consumer, script.size()));
    }
}
