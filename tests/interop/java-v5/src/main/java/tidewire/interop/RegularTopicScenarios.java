package tidewire.interop;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Regular topics (persistent://) with the v5 client, and what becomes of them when they are made scalable. */
final class RegularTopicScenarios {
    private static final List<String> KEYS = List.of("a", "b", "c", "d");

    private RegularTopicScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("regular_topic_stream_consumer", RegularTopicScenarios::streamConsumer);
        scenarios.put("regular_topic_stream_consumers_take_turns", RegularTopicScenarios::streamConsumersTakeTurns);
        scenarios.put("regular_topic_queue_consumers_share", RegularTopicScenarios::queueConsumersShare);
        scenarios.put("regular_topic_checkpoint_consumer", RegularTopicScenarios::checkpointConsumer);
        scenarios.put("regular_topic_of_old_and_new_clients", RegularTopicScenarios::oldAndNewClients);
        scenarios.put("old_consumer_of_a_pattern_follows_new_topics", RegularTopicScenarios::patternFollowsNewTopics);
        scenarios.put("regular_topic_refuses_transactions", RegularTopicScenarios::refusesTransactions);
        scenarios.put("migrate_under_running_clients", RegularTopicScenarios::migrateUnderRunningClients);
        scenarios.put("migrate_under_sends", RegularTopicScenarios::migrateUnderSends);
        scenarios.put("migrate_then_split_then_read_all", RegularTopicScenarios::migrateThenSplit);
        scenarios.put("migrated_subscriptions_keep_their_place", RegularTopicScenarios::subscriptionsKeepTheirPlace);
        scenarios.put("migrate_under_old_clients", RegularTopicScenarios::migrateUnderOldClients);
    }

    static Producer<String> producer(Stage stage) throws Exception {
        return stage.producer(Schema.string(), stage.regular);
    }

    static StreamConsumer<String> stream(Stage stage, String subscription) throws Exception {
        return stage.stream(Schema.string(), stage.regular, subscription);
    }

    private static QueueConsumer<String> queue(Stage stage, String subscription) throws Exception {
        return stage.queue(Schema.string(), stage.regular, subscription);
    }

    private static Consumer<String> oldConsumer(Stage stage, String subscription) throws Exception {
        return stage.keep(stage.oldClient().newConsumer(org.apache.pulsar.client.api.Schema.STRING)
                .topic(stage.regular)
                .subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe());
    }

    private static org.apache.pulsar.client.api.Producer<String> oldProducer(Stage stage) throws Exception {
        return stage.keep(stage.oldClient().newProducer(org.apache.pulsar.client.api.Schema.STRING)
                .topic(stage.regular)
                .create());
    }

    private static void sendAsBefore(
            Script script, org.apache.pulsar.client.api.Producer<String> producer, List<String> keys) throws Exception {
        for (String key : keys) {
            producer.newMessage().key(key).value(script.next(key, null)).send();
        }
    }

    /** The next {@code count} values, acknowledged. */
    private static List<String> values(Consumer<String> consumer, int count) throws Exception {
        List<String> values = new ArrayList<>();
        while (values.size() < count) {
            var message = consumer.receive((int) Limits.DELIVERY_MAX.toMillis(), TimeUnit.MILLISECONDS);
            Failure.unless(message != null, "only " + values + " came to the old client");
            values.add(message.getValue());
            consumer.acknowledgeAsync(message).get();
        }
        return values;
    }

    private static void streamConsumer(Stage stage) throws Exception {
        Script script = new Script();
        Producer<String> producer = producer(stage);
        SplitScenarios.sendRound(script, producer, KEYS, null);
        StreamConsumer<String> first = stream(stage, "sub");
        SplitScenarios.sendRound(script, producer, KEYS, null);
        script.check(Stage.receive(first, script.size()));
        first.close();
        script.forget();
        SplitScenarios.sendRound(script, producer, KEYS, null);
        script.check(Stage.receive(stream(stage, "sub"), script.size()));
    }

    /** Two of one subscription: the whole topic is one's until he leaves. */
    private static void streamConsumersTakeTurns(Stage stage) throws Exception {
        Script script = new Script();
        Producer<String> producer = producer(stage);
        StreamConsumer<String> first = stream(stage, "sub");
        StreamConsumer<String> second = stage.keep(stage.client.newStreamConsumer(Schema.string())
                .topic(stage.regular).subscriptionName("sub").consumerName("another").subscribe());
        SplitScenarios.sendRound(script, producer, KEYS, null);
        script.check(Stage.receive(first, script.size()));
        Stage.expectNothing(second, "the other one has the topic");
        first.close();
        script.forget();
        SplitScenarios.sendRound(script, producer, KEYS, null);
        script.check(Stage.receive(second, script.size()));
    }

    private static void queueConsumersShare(Stage stage) throws Exception {
        Script script = new Script();
        Producer<String> producer = producer(stage);
        QueueConsumer<String> one = queue(stage, "work");
        QueueConsumer<String> other = queue(stage, "work");
        for (int round = 0; round < 5; round++) {
            SplitScenarios.sendRound(script, producer, KEYS, null);
        }
        List<Message<String>> received = new ArrayList<>();
        for (QueueConsumer<String> consumer : List.of(one, other)) {
            Message<String> message;
            while ((message = consumer.receive(Limits.QUIET)) != null) {
                received.add(message);
                consumer.acknowledge(message.id());
            }
        }
        script.checkContent(received);
    }

    private static void checkpointConsumer(Stage stage) throws Exception {
        Script script = new Script();
        Producer<String> producer = producer(stage);
        SplitScenarios.sendRound(script, producer, KEYS, null);
        CheckpointConsumer<String> first = stage.keep(stage.client.newCheckpointConsumer(Schema.string())
                .topic(stage.regular).startPosition(Checkpoint.earliest()).create());
        List<Message<String>> received = new ArrayList<>(Receiving.first(first::receive, 2));
        byte[] stored = first.checkpoint().toByteArray();
        first.close();
        CheckpointConsumer<String> second = stage.keep(stage.client.newCheckpointConsumer(Schema.string())
                .topic(stage.regular).startPosition(Checkpoint.fromByteArray(stored)).create());
        SplitScenarios.sendRound(script, producer, KEYS, null);
        received.addAll(Receiving.exactly(second::receive, script.size() - received.size()));
        script.check(received);
    }

    /** Each sees what the other sends, and of a subscription that they share, what the other has left. */
    private static void oldAndNewClients(Stage stage) throws Exception {
        Script script = new Script();
        SplitScenarios.sendRound(script, producer(stage), KEYS, null);
        sendAsBefore(script, oldProducer(stage), KEYS);
        Consumer<String> old = oldConsumer(stage, "shared");
        List<String> first = values(old, 3);
        old.close();
        List<String> all = new ArrayList<>(first);
        all.addAll(Receiving.values(Stage.receive(queue(stage, "shared"), script.size() - 3)));
        Receiving.sameInAnyOrder("of both", all, script.values());
        Receiving.sameInAnyOrder("of the old client", values(oldConsumer(stage, "old"), script.size()), script.values());
        script.check(Stage.receive(stream(stage, "new"), script.size()));
    }

    /** E20: it asks again each second, because the broker announces no watches of topic lists. */
    private static void patternFollowsNewTopics(Stage stage) throws Exception {
        Consumer<String> pattern = stage.keep(stage.oldClient().newConsumer(org.apache.pulsar.client.api.Schema.STRING)
                .topicsPattern(Pattern.compile(stage.regular + ".*"))
                .subscriptionName("pattern")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS)
                .subscribe());
        for (String end : List.of("", "-second", "-third")) {
            stage.keep(stage.oldClient().newProducer(org.apache.pulsar.client.api.Schema.STRING)
                    .topic(stage.regular + end)
                    .create()).send("to" + end);
            Receiving.sameInAnyOrder("of topic" + end, values(pattern, 1), List.of("to" + end));
        }
    }

    /** T21, T35: they write to scalable topics; the refused one leaves no trace, and the topic goes on. */
    private static void refusesTransactions(Stage stage) throws Exception {
        Script script = new Script();
        Producer<String> producer = producer(stage);
        SplitScenarios.sendRound(script, producer, KEYS, null);
        Transaction transaction = stage.begin();
        Expect.refused("a message in a transaction", () -> producer.newMessage()
                .key("a").value("never to be seen").transaction(transaction).send());
        Expect.refused("its commit", transaction::commit);
        SplitScenarios.sendRound(script, producer, KEYS, null);
        script.check(Stage.receive(stream(stage, "after"), script.size()));
    }

    static void migrate(Stage stage, boolean force) throws Exception {
        stage.admin.migrate(stage.name, force).expect(204, "migration of " + stage.name);
    }

    /** T20: producers and consumers of every kind go on where they are, in order, and nothing comes twice. */
    private static void migrateUnderRunningClients(Stage stage) throws Exception {
        Script script = new Script();
        Producer<String> producer = producer(stage);
        StreamConsumer<String> stream = stream(stage, "stream");
        QueueConsumer<String> queue = queue(stage, "queue");
        CheckpointConsumer<String> reader = stage.keep(stage.client.newCheckpointConsumer(Schema.string())
                .topic(stage.regular).startPosition(Checkpoint.earliest()).create());
        SplitScenarios.sendRound(script, producer, KEYS, null);
        migrate(stage, false);
        SplitScenarios.sendRound(script, producer, KEYS, null);
        SplitScenarios.sendRound(script, producer(stage), KEYS, null);
        script.check(Stage.receive(stream, script.size()));
        script.checkContent(Stage.receive(queue, script.size()));
        script.checkContent(Receiving.exactly(reader::receive, script.size()));
        List<Admin.Segment> segments = stage.admin.segments(stage.name);
        Expect.equal("the segments", segments, List.of(
                new Admin.Segment(0, 0, 0xffff, false, List.of(), List.of(1)),
                new Admin.Segment(1, 0, 0xffff, true, List.of(0), List.of())));
        stage.admin.migrate(stage.name, false).expect(409, "a second migration");
    }

    /** T20: what is under way at that moment is lost by nobody. */
    private static void migrateUnderSends(Stage stage) throws Exception {
        Script script = new Script();
        Producer<String> producer = producer(stage);
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        CompletableFuture<Void> migration = null;
        for (int round = 0; round < 200; round++) {
            if (round == 100) {
                migration = CompletableFuture.runAsync(() -> {
                    try {
                        migrate(stage, false);
                    } catch (Exception e) {
                        throw new CompletionException(e);
                    }
                });
            }
            for (String key : KEYS) {
                receipts.add(producer.async().newMessage().key(key).value(script.next(key, null)).send());
            }
            Thread.sleep(2);
        }
        Expect.done(migration);
        Expect.allDone(receipts);
        Set<String> received = new HashSet<>(
                Receiving.values(Stage.receive(stream(stage, "after"), script.size())));
        Expect.equal("what was delivered", received, Set.copyOf(script.values()));
    }

    /** T20: the old messages first, then those of each generation, by either name. */
    private static void migrateThenSplit(Stage stage) throws Exception {
        Script script = new Script();
        Producer<String> producer = producer(stage);
        SplitScenarios.sendRound(script, producer, KEYS, null);
        migrate(stage, false);
        List<String> keys = Keys.overAll(stage.admin.segments(stage.name));
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.split(1);
        SplitScenarios.sendRound(script, producer, keys, null);
        SplitScenarios.sendRound(script, producer, KEYS, null);
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        transaction.commit();
        script.check(Stage.receive(stage.stream("by the new name"), script.size()));
        script.check(Stage.receive(stream(stage, "by the old name"), script.size()));
        script.checkContent(Stage.receive(stage.queue("work"), script.size()));
        CheckpointConsumer<String> reader = stage.keep(stage.client.newCheckpointConsumer(Schema.string())
                .topic(stage.topic).startPosition(Checkpoint.earliest()).create());
        script.checkContent(Receiving.exactly(reader::receive, script.size()));
    }

    /** What an old client had acknowledged does not come again, and the rest does. */
    private static void subscriptionsKeepTheirPlace(Stage stage) throws Exception {
        Script script = new Script();
        org.apache.pulsar.client.api.Producer<String> before = oldProducer(stage);
        sendAsBefore(script, before, KEYS);
        Consumer<String> old = oldConsumer(stage, "shared");
        oldConsumer(stage, "untouched").close();
        List<String> first = values(old, 2);
        old.close();
        before.close();
        migrate(stage, false);
        SplitScenarios.sendRound(script, producer(stage), KEYS, null);
        List<String> all = new ArrayList<>(first);
        all.addAll(Receiving.values(Stage.receive(stage.queue("shared"), script.size() - 2)));
        Receiving.sameInAnyOrder("of both", all, script.values());
        script.check(Stage.receive(stage.stream("untouched"), script.size()));
    }

    /** They are in the way, unless told otherwise; then they can write no more, and read what there was to its end. */
    private static void migrateUnderOldClients(Stage stage) throws Exception {
        Script script = new Script();
        org.apache.pulsar.client.api.Producer<String> before = oldProducer(stage);
        Consumer<String> old = oldConsumer(stage, "old");
        sendAsBefore(script, before, KEYS);
        stage.admin.migrate(stage.name, false).expect(409, "a migration under old clients");
        stage.admin.metadata(stage.name).expect(404, "the metadata of a topic that was not migrated");
        sendAsBefore(script, before, KEYS);
        migrate(stage, true);
        try {
            before.send("too late");
            throw new Failure("an old producer went on after the migration");
        } catch (org.apache.pulsar.client.api.PulsarClientException expected) {
            System.err.println("migrate_under_old_clients: the old producer was told " + expected);
        }
        Receiving.sameInAnyOrder("of the old client", values(old, script.size()), script.values());
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (!old.hasReachedEndOfTopic()) {
            Failure.unless(System.nanoTime() < deadline, "the old consumer was not told of the topic's end");
            Thread.sleep(Limits.TURN.toMillis());
        }
        SplitScenarios.sendRound(script, producer(stage), KEYS, null);
        script.check(Stage.receive(stage.stream("new"), script.size()));
    }
}
