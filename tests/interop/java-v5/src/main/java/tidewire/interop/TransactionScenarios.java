package tidewire.interop;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.api.v5.MessageBuilder;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionType;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Transactions on a topic that keeps its layout. */
final class TransactionScenarios {
    private TransactionScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("transaction_over_four_segments", TransactionScenarios::overFourSegments);
        scenarios.put("aborted_transaction_is_never_seen", TransactionScenarios::abortedIsNeverSeen);
        scenarios.put("plain_messages_between", TransactionScenarios::plainMessagesBetween);
        scenarios.put("many_transactions_open_at_once", TransactionScenarios::manyOpenAtOnce);
        scenarios.put("batches_in_transaction", TransactionScenarios::batches);
        scenarios.put("ended_transaction_is_closed_to_client", TransactionScenarios::endedIsClosed);
        scenarios.put("repeated_end_on_wire", TransactionScenarios::repeatedEnd);
        scenarios.put("send_in_transaction_ended_elsewhere", TransactionScenarios::sendAfterForeignEnd);
        scenarios.put("timed_out_transaction_is_never_seen", TransactionScenarios::timedOut);
        scenarios.put("ids_of_aborted_transaction_sent_again", TransactionScenarios::abortedIdsAgain);
        scenarios.put("ids_of_open_transaction_sent_again", TransactionScenarios::openIdsAgain);
    }

    /** T14: nothing before the commit, all of it afterwards, on all segments. */
    private static void overFourSegments(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        StreamConsumer<String> consumer = stage.stream("attached");
        Producer<String> producer = stage.producer();
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        SplitScenarios.sendRound(script, producer, keys, transaction);
        Stage.expectNothing(consumer, "the transaction is open");
        transaction.commit();
        script.check(Stage.receive(consumer, script.size()));
        script.check(Stage.receive(stage.stream("latecomer"), script.size()));
    }

    /** T17: seen neither by who was attached nor by who comes later. */
    private static void abortedIsNeverSeen(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        StreamConsumer<String> consumer = stage.stream("attached");
        Producer<String> producer = stage.producer();
        Transaction aborted = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, aborted);
        aborted.abort();
        script.drop(aborted);
        Stage.expectNothing(consumer, "the only transaction was aborted");
        Transaction committed = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, committed);
        committed.commit();
        script.check(Stage.receive(consumer, script.size()));
        script.check(Stage.receive(stage.stream("latecomer"), script.size()));
    }

    private static void sendIds(Producer<String> producer, String name, Transaction transaction) throws Exception {
        for (int id = 0; id < 3; id++) {
            MessageBuilder<String> message = producer.newMessage().key("k").sequenceId(id).value(name + " " + id);
            (transaction == null ? message : message.transaction(transaction)).send();
        }
    }

    /** E6: the ids of an aborted transaction are new, outside transactions too; those of a committed one are stored. */
    private static void abortedIdsAgain(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer();
        for (int round = 0; round < 2; round++) {
            Transaction aborted = stage.begin();
            sendIds(producer, "aborted", aborted);
            aborted.abort();
        }
        Transaction committed = stage.begin();
        sendIds(producer, "committed", committed);
        committed.commit();
        Transaction late = stage.begin();
        sendIds(producer, "late", late);
        late.commit();
        sendIds(producer, "plain", null);
        Expect.equal("what came", Receiving.values(Receiving.exactly(stage.stream("sub")::receive, 3)),
                List.of("committed 0", "committed 1", "committed 2"));
    }

    /** E6: while the first transaction is open nobody knows; the send fails, and can be repeated after the abort. */
    private static void openIdsAgain(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer();
        Transaction first = stage.begin();
        sendIds(producer, "first", first);
        long start = System.currentTimeMillis();
        Expect.refused("a send with the id of one in an open transaction", () -> sendIds(producer, "early", null));
        long tookMillis = System.currentTimeMillis() - start;
        Failure.unless(tookMillis < Limits.AT_ONCE.toMillis(), "the client repeated it for " + tookMillis + " ms");
        first.abort();
        sendIds(producer, "plain", null);
        Expect.equal("what came", Receiving.values(Receiving.exactly(stage.stream("sub")::receive, 3)),
                List.of("plain 0", "plain 1", "plain 2"));
    }

    /** T14, T15: messages outside transactions wait behind an open one and are neither lost nor reordered. */
    private static void plainMessagesBetween(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        Transaction aborted = stage.begin();
        Transaction committed = stage.begin();
        for (int round = 0; round < 3; round++) {
            SplitScenarios.sendRound(script, producer, keys, aborted);
            SplitScenarios.sendRound(script, producer, keys, null);
            SplitScenarios.sendRound(script, producer, keys, committed);
        }
        committed.commit();
        aborted.abort();
        script.drop(aborted);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T14, T15: sixteen open at once on the same segments, ended from the last to the first, every third aborted. */
    private static void manyOpenAtOnce(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        StreamConsumer<String> consumer = stage.stream("attached");
        Producer<String> producer = stage.producer();
        List<Transaction> transactions = new ArrayList<>();
        for (int number = 0; number < 16; number++) {
            Transaction transaction = stage.begin();
            transactions.add(transaction);
            SplitScenarios.sendRound(script, producer, keys, transaction);
        }
        for (int number = transactions.size() - 1; number > 0; number--) {
            if (number % 3 == 0) {
                transactions.get(number).abort();
                script.drop(transactions.get(number));
            } else {
                transactions.get(number).commit();
            }
        }
        Stage.expectNothing(consumer, "the first transaction is still open");
        transactions.get(0).commit();
        script.check(Stage.receive(consumer, script.size()));
    }

    /** T14: two thousand messages sent without waiting, in compressed batches, half of them in a transaction. */
    private static void batches(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer(stage.client.newProducer(Schema.string())
                .compressionPolicy(CompressionPolicy.of(CompressionType.LZ4))
                .batchingPolicy(BatchingPolicy.builder()
                        .enabled(true).maxMessages(100).maxPublishDelay(Duration.ofMillis(20)).build()));
        Transaction transaction = stage.begin();
        for (int part = 0; part < 10; part++) {
            Transaction in = part % 2 == 0 ? transaction : null;
            List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
            for (int round = 0; round < 25; round++) {
                for (String key : keys) {
                    var message = producer.async().newMessage().key(key).value(script.next(key, in));
                    if (in != null) {
                        message.transaction(in);
                    }
                    receipts.add(message.send());
                }
            }
            // The client itself lets a message outside the transaction overtake one inside that still registers.
            CompletableFuture.allOf(receipts.toArray(CompletableFuture[]::new))
                    .get(Limits.DELIVERY_MAX.toMillis(), TimeUnit.MILLISECONDS);
        }
        transaction.commit();
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T7: as far as the client's own transaction object lets it come to that. */
    private static void endedIsClosed(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(1));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction committed = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, committed);
        committed.commit();
        Failure.unless(committed.state() == Transaction.State.COMMITTED, "after commit: " + committed.state());
        Expect.refused("commit after commit", committed::commit);
        Expect.refused("abort after commit", committed::abort);
        Expect.refused("send after commit", () -> new Script().send(producer, keys.get(0), committed));
        Transaction aborted = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, aborted);
        aborted.abort();
        script.drop(aborted);
        Failure.unless(aborted.state() == Transaction.State.ABORTED, "after abort: " + aborted.state());
        Expect.refused("commit after abort", aborted::commit);
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T2, T7: the same end again succeeds, the opposite one is InvalidTxnStatus, an unknown id is not found. */
    private static void repeatedEnd(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Coordinator coordinator = new Coordinator(stage.client);
        Transaction first = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, first);
        TxnID committed = Coordinator.id(first);
        answered("commit", coordinator.commit(committed), "ok");
        answered("commit again", coordinator.commit(committed), "ok");
        answered("abort after commit", coordinator.abort(committed), "InvalidTxnStatusException");
        Transaction second = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, second);
        TxnID aborted = Coordinator.id(second);
        answered("abort", coordinator.abort(aborted), "ok");
        answered("abort again", coordinator.abort(aborted), "ok");
        answered("commit after abort", coordinator.commit(aborted), "InvalidTxnStatusException");
        script.drop(second);
        TxnID unknown = new TxnID(committed.getMostSigBits(), committed.getLeastSigBits() + 1_000_000);
        answered("commit of an unknown id", coordinator.commit(unknown), "TransactionNotFoundException");
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T11, T12: the broker, not only the client, refuses a message of a transaction that has ended. */
    private static void sendAfterForeignEnd(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Coordinator coordinator = new Coordinator(stage.client);
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        answered("abort", coordinator.abort(Coordinator.id(transaction)), "ok");
        Expect.refused("a send in a transaction that was aborted elsewhere",
                () -> new Script().send(producer, keys.get(0), transaction));
        Expect.refused("its commit", transaction::commit);
        script.drop(transaction);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T9: the broker aborts what passes its deadline, so messages behind it are delivered. */
    private static void timedOut(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        StreamConsumer<String> consumer = stage.stream("attached");
        Producer<String> producer = stage.producer();
        // The timeout belongs to a client, and a transaction to the producers of its client.
        PulsarClient hasty = stage.newClient(Limits.TRANSACTION_TIMEOUT_SHORT);
        Producer<String> hastyProducer = stage.producer(hasty.newProducer(Schema.string()));
        Transaction transaction = hasty.newTransaction();
        SplitScenarios.sendRound(script, hastyProducer, keys, transaction);
        SplitScenarios.sendRound(script, producer, keys, null);
        Stage.expectNothing(consumer, "the transaction is open and in front");
        script.drop(transaction);
        script.check(Stage.receive(consumer, script.size()));
        Expect.refused("commit after the timeout", transaction::commit);
    }

    private static void answered(String what, String answer, String wanted) throws Failure {
        Failure.unless(answer.equals(wanted), what + " answered " + answer + " instead of " + wanted);
    }
}
