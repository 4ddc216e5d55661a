package tidewire.interop;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** The broker is killed and restarted under the client's feet. */
final class RestartScenarios {
    private RestartScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios, Operator operator) {
        scenarios.put("open_transaction_survives_kill", stage -> openTransactionSurvives(stage, operator));
        scenarios.put("ended_transactions_survive_kill", stage -> endedTransactionsSurvive(stage, operator));
        scenarios.put("split_topic_survives_kill", stage -> splitTopicSurvives(stage, operator));
        scenarios.put("pending_acks_survive_kill_and_commit", stage -> pendingAcks(stage, operator, true));
        scenarios.put("pending_acks_survive_kill_and_abort", stage -> pendingAcks(stage, operator, false));
        scenarios.put("committed_acks_survive_kill", stage -> committedAcks(stage, operator));
        scenarios.put("ack_inside_batch_survives_kill", stage -> ackInsideBatch(stage, operator));
        scenarios.put("sends_under_way_at_kill_are_not_lost", stage -> sendsUnderWay(stage, operator, false));
        scenarios.put("sends_under_way_at_kill_come_once", stage -> sendsUnderWay(stage, operator, true));
        scenarios.put("checkpoint_survives_kill", stage -> checkpoint(stage, operator));
        scenarios.put("regular_topic_survives_kill", stage -> regularTopic(stage, operator, false));
        scenarios.put("migrated_topic_survives_kill", stage -> regularTopic(stage, operator, true));
    }

    /**
     * Waits until the client asks the broker again. Having met a dead one it refuses whatever is new by itself, "No
     * available hosts found", until one of its older producers or consumers has found the broker alive.
     */
    private static void clientIsBack(Stage stage) throws Exception {
        clientIsBack(stage, stage.topic);
    }

    private static void clientIsBack(Stage stage, String topic) throws Exception {
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (true) {
            try {
                stage.producer(Schema.string(), topic).close();
                return;
            } catch (PulsarClientException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(Limits.TURN.toMillis());
            }
        }
    }

    /** T10: nothing is replayed for an open transaction; it goes on and commits where it was. */
    private static void openTransactionSurvives(Stage stage, Operator operator) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        StreamConsumer<String> attached = stage.stream("attached");
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        Set<String> seen = new HashSet<>();
        List<Message<String>> first = Stage.receive(attached, script.size());
        script.check(first);
        first.forEach(message -> seen.add(message.value()));
        script.forget();
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        operator.restartBroker();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        SplitScenarios.sendRound(script, producer, keys, null);
        transaction.commit();
        // An acknowledgement outside transactions gets no answer, so the last ones before the kill may be lost.
        List<Message<String>> second = Stage.receive(attached, script.size(), seen);
        second.removeIf(message -> seen.contains(message.value()));
        script.check(second);
    }

    /** T10, T17: what was committed is there and what was aborted is not, before anything new is written. */
    private static void endedTransactionsSurvive(Stage stage, Operator operator) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction committed = stage.begin();
        Transaction aborted = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, committed);
        SplitScenarios.sendRound(script, producer, keys, aborted);
        SplitScenarios.sendRound(script, producer, keys, null);
        aborted.abort();
        script.drop(aborted);
        committed.commit();
        operator.restartBroker();
        clientIsBack(stage);
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T10, T20: the layout is there again, and so is what an open transaction wrote before and after the split. */
    private static void splitTopicSurvives(Stage stage, Operator operator) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        stage.split(1);
        SplitScenarios.sendRound(script, producer, keys, null);
        SplitScenarios.sendRound(script, producer, keys, transaction);
        operator.restartBroker();
        List<Admin.Segment> segments = stage.admin.segments(stage.name);
        Failure.unless(segments.size() == 6 && !segments.get(1).active(), "the layout after the restart: " + segments);
        SplitScenarios.sendRound(script, producer, keys, transaction);
        transaction.commit();
        clientIsBack(stage);
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /**
     * T22, T25: what an open transaction acknowledged before the kill is nobody's after it, and ends with the
     * transaction.
     */
    private static void pendingAcks(Stage stage, Operator operator, boolean commit) throws Exception {
        stage.createTopic(1);
        AcknowledgementScenarios.sendNumbered(stage, 0, 6);
        QueueConsumer<String> consumer = stage.queue("sub");
        Transaction transaction = stage.begin();
        List<Message<String>> held = Receiving.first(consumer::receive, 6);
        held.subList(0, 3).forEach(message -> consumer.acknowledge(message.id(), transaction));
        Coordinator.answered(transaction);
        operator.restartBroker();
        List<String> again = Receiving.values(Receiving.exactly(consumer::receive, 3));
        Receiving.sameInAnyOrder("after the restart", again, AcknowledgementScenarios.numbered(3, 6));
        if (commit) {
            transaction.commit();
        } else {
            transaction.abort();
        }
        consumer.close();
        clientIsBack(stage);
        AcknowledgementScenarios.left(stage, AcknowledgementScenarios.numbered(commit ? 3 : 0, 6), "after the end");
    }

    /** T23, D3: killed the moment the commit has returned. */
    private static void committedAcks(Stage stage, Operator operator) throws Exception {
        stage.createTopic(1);
        AcknowledgementScenarios.sendNumbered(stage, 0, 6);
        QueueConsumer<String> consumer = stage.queue("sub");
        Transaction transaction = stage.begin();
        Receiving.first(consumer::receive, 6).subList(1, 6)
                .forEach(message -> consumer.acknowledge(message.id(), transaction));
        transaction.commit();
        operator.restartBroker();
        // Received before it is closed: a consumer that is closed while it comes back takes its connection with it.
        Expect.equal("after the restart", Receiving.exactly(consumer::receive, 1).get(0).value(), "message 0");
        consumer.close();
        clientIsBack(stage);
        AcknowledgementScenarios.left(stage, List.of("message 0"), "after the restart");
    }

    /** D12: one of ten messages of a batch is acknowledged in a transaction; restart, commit: nine are left. */
    private static void ackInsideBatch(Stage stage, Operator operator) throws Exception {
        stage.createTopic(1);
        RedeliveryScenarios.sendBatch(stage);
        QueueConsumer<String> consumer = stage.queue("sub");
        Transaction transaction = stage.begin();
        consumer.acknowledge(Receiving.first(consumer::receive, 10).get(4).id(), transaction);
        Coordinator.answered(transaction);
        operator.restartBroker();
        // Received before it is closed: a consumer that is closed while it comes back takes its connection with it.
        Receiving.sameInAnyOrder("after the restart", Receiving.values(Receiving.exactly(consumer::receive, 9)),
                AcknowledgementScenarios.without(AcknowledgementScenarios.numbered(0, 10), List.of("message 4")));
        transaction.commit();
        consumer.close();
        clientIsBack(stage);
        AcknowledgementScenarios.left(stage, AcknowledgementScenarios.without(
                AcknowledgementScenarios.numbered(0, 10), List.of("message 4")), "after the commit");
    }

    /**
     * Everything that got its receipt, before or after the kill, is there; and once, although the client sends again
     * what had no receipt when the broker died.
     */
    private static void sendsUnderWay(Stage stage, Operator operator, boolean once) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        // A broker may take its time to come back; these sends are to outlast that.
        Producer<String> producer = stage.keep(stage.client.newProducer(Schema.string())
                .topic(stage.topic)
                .producerName("writer")
                .sendTimeout(Limits.SCENARIO_MAX)
                .create());
        List<CompletableFuture<?>> receipts = new ArrayList<>();
        CompletableFuture<Void> restart = null;
        for (int round = 0; round < 100; round++) {
            if (round == 50) {
                restart = CompletableFuture.runAsync(() -> {
                    try {
                        operator.restartBroker();
                    } catch (Exception e) {
                        throw new CompletionException(e);
                    }
                });
            }
            for (String key : keys) {
                receipts.add(producer.async().newMessage().key(key).value(script.next(key, null)).send());
            }
            Thread.sleep(2);
        }
        restart.get(Limits.SCENARIO_MAX.toSeconds(), TimeUnit.SECONDS);
        Expect.allDone(receipts);
        clientIsBack(stage);
        List<Message<String>> received = Stage.receive(stage.stream("after"), script.size());
        if (once) {
            script.check(received);
        } else {
            Set<String> missing = new HashSet<>(script.values());
            Receiving.values(received).forEach(missing::remove);
            Failure.unless(missing.isEmpty(), "missing " + missing);
        }
    }

    private static void checkpoint(Stage stage, Operator operator) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        var builder = stage.client.newCheckpointConsumer(Schema.string()).topic(stage.topic);
        CheckpointConsumer<String> first = stage.keep(builder.startPosition(Checkpoint.earliest()).create());
        script.check(Receiving.exactly(first::receive, script.size()));
        byte[] stored = first.checkpoint().toByteArray();
        first.close();
        operator.restartBroker();
        clientIsBack(stage);
        script.forget();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Receiving.exactly(
                stage.keep(builder.startPosition(Checkpoint.fromByteArray(stored)).create())::receive, script.size()));
    }

    /** Clients of a regular topic come back to it, and to the scalable one that it has become meanwhile. */
    private static void regularTopic(Stage stage, Operator operator, boolean migrated) throws Exception {
        List<String> keys = List.of("a", "b", "c");
        Script script = new Script();
        Producer<String> producer = RegularTopicScenarios.producer(stage);
        StreamConsumer<String> attached = RegularTopicScenarios.stream(stage, "attached");
        SplitScenarios.sendRound(script, producer, keys, null);
        if (migrated) {
            RegularTopicScenarios.migrate(stage, false);
            SplitScenarios.sendRound(script, producer, keys, null);
        }
        Set<String> seen = new HashSet<>(Receiving.values(Stage.receive(attached, script.size())));
        Expect.equal("what came before", seen, Set.copyOf(script.values()));
        operator.restartBroker();
        SplitScenarios.sendRound(script, producer, keys, null);
        clientIsBack(stage, stage.regular);
        // An acknowledgement outside transactions gets no answer, so the last ones before the kill may be lost.
        Set<String> all = new HashSet<>(seen);
        Stage.receive(attached, script.size() - seen.size(), seen).forEach(message -> all.add(message.value()));
        Expect.equal("what came altogether", all, Set.copyOf(script.values()));
        script.check(Stage.receive(RegularTopicScenarios.stream(stage, "after"), script.size()));
    }
}
