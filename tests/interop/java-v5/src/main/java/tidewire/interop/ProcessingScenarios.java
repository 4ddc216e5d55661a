package tidewire.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Transactions as applications use them: reading here and writing there, over topics and namespaces. */
final class ProcessingScenarios {
    private ProcessingScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("consume_and_produce_in_transaction", ProcessingScenarios::consumeAndProduce);
        scenarios.put("consume_and_produce_across_split", ProcessingScenarios::consumeAndProduceAcrossSplit);
        scenarios.put("transaction_over_two_topics", ProcessingScenarios::twoTopics);
        scenarios.put("transaction_over_two_namespaces", stage -> twoNamespaces(stage, true));
        scenarios.put("aborted_transaction_over_two_namespaces", stage -> twoNamespaces(stage, false));
        scenarios.put("empty_transactions_end", ProcessingScenarios::empty);
        scenarios.put("double_commit_and_double_abort", ProcessingScenarios::doubleEnds);
        scenarios.put("commit_after_abort_is_refused", ProcessingScenarios::commitAfterAbort);
        scenarios.put("commit_waits_for_sends_under_way", ProcessingScenarios::commitWaits);
        scenarios.put("transaction_of_closed_producer", ProcessingScenarios::closedProducer);
        scenarios.put("large_messages_in_transaction", ProcessingScenarios::largeMessages);
        scenarios.put("transactions_one_after_another", ProcessingScenarios::oneAfterAnother);
        scenarios.put("commit_racing_abort", ProcessingScenarios::racingEnds);
    }

    /**
     * T22, T23, T33: every message is doubled from one topic to another, each in a transaction of its own; every
     * third transaction is aborted and its message tried again, until each has been done once.
     */
    private static void consumeAndProduce(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        String target = stage.createAnother("target", 2);
        Script script = new Script();
        Producer<String> source = stage.producer();
        for (int round = 0; round < 3; round++) {
            SplitScenarios.sendRound(script, source, keys, null);
        }
        process(stage, stage.queue("processor"), target, script.size());
        List<String> wanted = script.values().stream().map(value -> value + "!").toList();
        Receiving.sameInAnyOrder("processed",
                Receiving.values(Receiving.exactly(stage.queue(Schema.string(), target, "after")::receive,
                        wanted.size())), wanted);
        Receiving.nothing(stage.queue("processor")::receive, "each was acknowledged with its result");
    }

    /** T20: the same, when both topics are split in the middle of it. */
    private static void consumeAndProduceAcrossSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        String target = stage.createAnother("target", 1);
        Script script = new Script();
        Producer<String> source = stage.producer();
        QueueConsumer<String> processor = stage.queue("processor");
        SplitScenarios.sendRound(script, source, keys, null);
        process(stage, processor, target, script.size());
        stage.split(0);
        stage.admin.split(stage.name + "-target", 0).expect(204, "split of the target");
        int before = script.size();
        SplitScenarios.sendRound(script, source, keys, null);
        process(stage, processor, target, script.size() - before);
        processor.close();
        List<String> wanted = script.values().stream().map(value -> value + "!").toList();
        Receiving.sameInAnyOrder("processed",
                Receiving.values(Receiving.exactly(stage.queue(Schema.string(), target, "after")::receive,
                        wanted.size())), wanted);
        Receiving.nothing(stage.queue("processor")::receive, "each was acknowledged with its result");
    }

    private static void process(Stage stage, QueueConsumer<String> processor, String target, int count)
            throws Exception {
        Producer<String> producer = stage.producer(Schema.string(), target);
        int done = 0;
        for (int attempt = 1; done < count; attempt++) {
            Failure.unless(attempt <= 3 * count, "only " + done + " of " + count + " done after many attempts");
            Message<String> message = Receiving.one(processor::receive);
            Transaction transaction = stage.begin();
            producer.newMessage().key(message.key().orElse("")).value(message.value() + "!")
                    .transaction(transaction).send();
            processor.acknowledge(message.id(), transaction);
            if (attempt % 3 == 0) {
                transaction.abort();
            } else {
                transaction.commit();
                done++;
            }
        }
        producer.close();
    }

    /** T33: seen on both or on none. */
    private static void twoTopics(Stage stage) throws Exception {
        stage.createTopic(1);
        String second = stage.createAnother("second", 1);
        Producer<String> one = stage.producer();
        Producer<String> other = stage.producer(Schema.string(), second);
        QueueConsumer<String> fromOne = stage.queue("sub");
        QueueConsumer<String> fromOther = stage.queue(Schema.string(), second, "sub");
        Transaction committed = stage.begin();
        Transaction aborted = stage.begin();
        for (Transaction transaction : List.of(aborted, committed)) {
            String value = transaction == committed ? "committed" : "aborted";
            one.newMessage().key("k").value(value).transaction(transaction).send();
            other.newMessage().key("k").value(value).transaction(transaction).send();
        }
        Receiving.nothing(fromOne::receive, "both are open");
        Receiving.nothing(fromOther::receive, "both are open");
        aborted.abort();
        committed.commit();
        Expect.equal("on one", Receiving.values(Receiving.exactly(fromOne::receive, 1)), List.of("committed"));
        Expect.equal("on the other", Receiving.values(Receiving.exactly(fromOther::receive, 1)), List.of("committed"));
    }

    /** T33: acknowledged in one namespace and written in another, together. */
    private static void twoNamespaces(Stage stage, boolean commit) throws Exception {
        stage.createTopic(1);
        Admin elsewhere = stage.inNamespace("public/" + stage.name);
        elsewhere.create("target", 2).expect(204, "PUT in the other namespace");
        String target = "topic://public/" + stage.name + "/target";
        AcknowledgementScenarios.sendNumbered(stage, 0, 3);
        QueueConsumer<String> consumer = stage.queue("sub");
        Producer<String> producer = stage.producer(Schema.string(), target);
        Transaction transaction = stage.begin();
        for (Message<String> message : Receiving.first(consumer::receive, 3)) {
            producer.newMessage().value(message.value()).transaction(transaction).send();
            consumer.acknowledge(message.id(), transaction);
        }
        if (commit) {
            transaction.commit();
        } else {
            transaction.abort();
        }
        consumer.close();
        List<String> all = AcknowledgementScenarios.numbered(0, 3);
        QueueConsumer<String> after = stage.queue(Schema.string(), target, "after");
        Receiving.sameInAnyOrder("written", Receiving.values(Receiving.exactly(after::receive, commit ? 3 : 0)),
                commit ? all : List.of());
        AcknowledgementScenarios.left(stage, commit ? List.of() : all, "in the end");
    }

    /** T5, T6: without having touched anything. */
    private static void empty(Stage stage) throws Exception {
        Transaction committed = stage.begin();
        committed.commit();
        Expect.equal("state", committed.state(), Transaction.State.COMMITTED);
        Transaction aborted = stage.begin();
        aborted.abort();
        Expect.equal("state", aborted.state(), Transaction.State.ABORTED);
        Transaction asynchronous = Expect.done(stage.client.newTransactionAsync());
        Expect.equal("state", asynchronous.state(), Transaction.State.OPEN);
        Expect.done(asynchronous.async().commit());
        Expect.equal("state", asynchronous.state(), Transaction.State.COMMITTED);
    }

    /** T7: at the broker the second end of the same kind changes nothing and is no error. */
    private static void doubleEnds(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer();
        Coordinator coordinator = new Coordinator(stage.client);
        Transaction committed = stage.begin();
        producer.newMessage().key("k").value("committed").transaction(committed).send();
        committed.commit();
        Expect.equal("second commit", coordinator.commit(Coordinator.id(committed)), "ok");
        Transaction aborted = stage.begin();
        producer.newMessage().key("k").value("aborted").transaction(aborted).send();
        aborted.abort();
        Expect.equal("second abort", coordinator.abort(Coordinator.id(aborted)), "ok");
        Expect.equal("received", Receiving.values(Receiving.exactly(stage.queue("sub")::receive, 1)),
                List.of("committed"));
    }

    /** T2, T7, T8: and the data stays unseen; likewise the other way round. */
    private static void commitAfterAbort(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer();
        Coordinator coordinator = new Coordinator(stage.client);
        Transaction aborted = stage.begin();
        producer.newMessage().key("k").value("aborted").transaction(aborted).send();
        aborted.abort();
        Expect.equal("commit after abort", coordinator.commit(Coordinator.id(aborted)), "InvalidTxnStatusException");
        Transaction committed = stage.begin();
        producer.newMessage().key("k").value("committed").transaction(committed).send();
        committed.commit();
        Expect.equal("abort after commit", coordinator.abort(Coordinator.id(committed)), "InvalidTxnStatusException");
        Expect.equal("received", Receiving.values(Receiving.exactly(stage.queue("sub")::receive, 1)),
                List.of("committed"));
    }

    /** T11, T14: a commit called right behind hundreds of sends takes all of them with it. */
    private static void commitWaits(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction transaction = stage.begin();
        // The first send to each segment registers it; only what is handed over before the commit belongs to it.
        SplitScenarios.sendRound(script, producer, keys, transaction);
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int round = 0; round < 50; round++) {
            for (String key : keys) {
                receipts.add(producer.async().newMessage().key(key).value(script.next(key, transaction))
                        .transaction(transaction).send());
            }
        }
        transaction.commit();
        Expect.allDone(receipts);
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T14: what it had written is committed without it. */
    private static void closedProducer(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        producer.close();
        transaction.commit();
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T11, T14: ten megabytes, committed; as much again, aborted. */
    private static void largeMessages(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<byte[]> producer = stage.producer(Schema.bytes(), stage.topic);
        Transaction committed = stage.begin();
        Transaction aborted = stage.begin();
        for (int number = 0; number < 10; number++) {
            byte[] large = new byte[1024 * 1024];
            large[0] = (byte) number;
            producer.newMessage().key("k").value(large).transaction(committed).send();
            producer.newMessage().key("k").value(large).transaction(aborted).send();
        }
        aborted.abort();
        committed.commit();
        int number = 0;
        for (Message<byte[]> message
                : Receiving.exactly(stage.queue(Schema.bytes(), stage.topic, "after")::receive, 10)) {
            Expect.equal("size", message.data().length, 1024 * 1024);
            Expect.equal("number", (int) message.data()[0], number++);
        }
    }

    /** T4, T14, T15: fifty of them, one message each, seen in their order. */
    private static void oneAfterAnother(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer();
        QueueConsumer<String> consumer = stage.queue("sub");
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < 50; number++) {
            Transaction transaction = stage.begin();
            producer.newMessage().key("k").value("message " + number).transaction(transaction).send();
            if (number % 5 == 0) {
                transaction.abort();
            } else {
                transaction.commit();
                wanted.add("message " + number);
            }
        }
        Expect.equal("received", Receiving.values(Receiving.exactly(consumer::receive, wanted.size())), wanted);
    }

    /** T8: of a commit and an abort that race exactly one wins, and what is seen agrees with it. */
    private static void racingEnds(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer();
        Coordinator coordinator = new Coordinator(stage.client);
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            Transaction transaction = stage.begin();
            producer.newMessage().key("k").value("message " + number).transaction(transaction).send();
            var id = Coordinator.id(transaction);
            CompletableFuture<String> commit = CompletableFuture.supplyAsync(() -> ended(() -> coordinator.commit(id)));
            CompletableFuture<String> abort = CompletableFuture.supplyAsync(() -> ended(() -> coordinator.abort(id)));
            boolean committed = Expect.done(commit).equals("ok");
            boolean aborted = Expect.done(abort).equals("ok");
            Failure.unless(committed != aborted, "commit " + commit.join() + ", abort " + abort.join());
            if (committed) {
                wanted.add("message " + number);
            }
        }
        Expect.equal("received",
                Receiving.values(Receiving.exactly(stage.queue("sub")::receive, wanted.size())), wanted);
    }

    private interface End {
        String answer() throws Exception;
    }

    private static String ended(End end) {
        try {
            return end.answer();
        } catch (Exception e) {
            return e.toString();
        }
    }
}
