package tidewire.interop;

import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Acknowledgements inside transactions: they count from the commit on, or never. */
final class AcknowledgementScenarios {
    private static final int SENT = 6;

    private AcknowledgementScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("ack_in_committed_transaction", AcknowledgementScenarios::committed);
        scenarios.put("ack_in_aborted_transaction_comes_again", AcknowledgementScenarios::aborted);
        scenarios.put("ack_in_open_transaction_is_not_delivered_to_others", AcknowledgementScenarios::open);
        scenarios.put("consumer_closed_before_commit", stage -> closedBeforeEnd(stage, true));
        scenarios.put("consumer_closed_before_abort", stage -> closedBeforeEnd(stage, false));
        scenarios.put("cumulative_ack_in_committed_transaction", stage -> cumulative(stage, true));
        scenarios.put("cumulative_ack_in_aborted_transaction", stage -> cumulative(stage, false));
        scenarios.put("cumulative_ack_again_where_nothing_moved", AcknowledgementScenarios::cumulativeWithoutMove);
        scenarios.put("ack_inside_batch_in_committed_transaction", stage -> insideBatch(stage, true));
        scenarios.put("ack_inside_batch_in_aborted_transaction", stage -> insideBatch(stage, false));
        scenarios.put("cumulative_ack_inside_batch_in_transaction", AcknowledgementScenarios::cumulativeInsideBatch);
        scenarios.put("ack_pending_in_another_transaction_conflicts", AcknowledgementScenarios::conflict);
        scenarios.put("ack_twice_in_one_transaction_conflicts", AcknowledgementScenarios::twice);
        scenarios.put("ack_of_acknowledged_message_conflicts", AcknowledgementScenarios::alreadyAcknowledged);
        scenarios.put("abort_releases_acks_to_another_transaction", AcknowledgementScenarios::released);
        scenarios.put("ack_in_transaction_ended_elsewhere_is_refused", AcknowledgementScenarios::late);
        scenarios.put("ack_in_timed_out_transaction_comes_again", AcknowledgementScenarios::timedOut);
        scenarios.put("ack_on_sealed_parent_in_transaction", stage -> onSealedParent(stage, true));
        scenarios.put("ack_on_sealed_parent_in_aborted_transaction", stage -> onSealedParent(stage, false));
        scenarios.put("cumulative_ack_across_split_in_transaction", AcknowledgementScenarios::cumulativeAcrossSplit);
        scenarios.put("two_subscriptions_in_one_transaction", AcknowledgementScenarios::twoSubscriptions);
        scenarios.put("plain_and_transactional_acks_mixed", AcknowledgementScenarios::mixed);
    }

    static List<String> numbered(int from, int to) {
        return IntStream.range(from, to).mapToObj(number -> "message " + number).toList();
    }

    static void sendNumbered(Stage stage, int from, int to) throws Exception {
        Producer<String> producer = stage.producer();
        for (String value : numbered(from, to)) {
            producer.newMessage().key("k").value(value).send();
        }
        producer.close();
    }

    /** A topic of one segment with messages 0 to 5, and a consumer that holds them all. */
    private static QueueConsumer<String> holder(Stage stage) throws Exception {
        stage.createTopic(1);
        sendNumbered(stage, 0, SENT);
        return stage.queue("sub");
    }

    /** What the subscription still owes to who comes next. */
    static void left(Stage stage, List<String> wanted, String when) throws Exception {
        QueueConsumer<String> successor = stage.queue("sub");
        List<String> got = Receiving.values(Receiving.first(successor::receive, wanted.size()));
        Receiving.sameInAnyOrder("left " + when, got, wanted);
        Receiving.nothing(successor::receive, "left " + when + " were " + wanted);
        successor.close();
    }

    /** T22, T23: they count although the consumer never acknowledged otherwise. */
    private static void committed(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        Transaction transaction = stage.begin();
        for (Message<String> message : Receiving.first(consumer::receive, SENT)) {
            if (!message.value().equals("message 4")) {
                consumer.acknowledge(message.id(), transaction);
            }
        }
        transaction.commit();
        consumer.close();
        left(stage, List.of("message 4"), "after the commit");
    }

    /** T23: they come again by themselves, to the consumer that is still there. */
    private static void aborted(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        Transaction transaction = stage.begin();
        List<Message<String>> held = Receiving.first(consumer::receive, SENT);
        held.subList(0, 3).forEach(message -> consumer.acknowledge(message.id(), transaction));
        held.subList(3, SENT).forEach(message -> consumer.acknowledge(message.id()));
        transaction.abort();
        List<Message<String>> again = Receiving.exactly(consumer::receive, 3);
        Receiving.sameInAnyOrder("what came again", Receiving.values(again), numbered(0, 3));
        again.forEach(message -> consumer.acknowledge(message.id()));
        consumer.close();
        left(stage, List.of(), "after acknowledging them at last");
    }

    /** T22: as long as the transaction is open they are nobody's, not even when their consumer has gone. */
    private static void open(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        Transaction transaction = stage.begin();
        List<Message<String>> held = Receiving.first(consumer::receive, SENT);
        held.subList(0, 2).forEach(message -> consumer.acknowledge(message.id(), transaction));
        Coordinator.answered(transaction);
        consumer.close();
        left(stage, numbered(2, SENT), "while the transaction is open");
        transaction.commit();
        left(stage, numbered(2, SENT), "after the commit");
    }

    /** T22, T23: the acknowledgements do not go with the consumer that sent them. */
    private static void closedBeforeEnd(Stage stage, boolean commit) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        Transaction transaction = stage.begin();
        Receiving.first(consumer::receive, SENT).forEach(message -> consumer.acknowledge(message.id(), transaction));
        Coordinator.answered(transaction);
        consumer.close();
        if (commit) {
            transaction.commit();
            left(stage, List.of(), "after the commit");
        } else {
            transaction.abort();
            left(stage, numbered(0, SENT), "after the abort");
        }
    }

    /** T22, T23: on several segments at once, by the position vector of one message id. */
    private static void cumulative(Stage stage, boolean commit) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        StreamConsumer<String> consumer = stage.stream("sub");
        List<Message<String>> held = Receiving.exactly(consumer::receive, script.size());
        Transaction transaction = stage.begin();
        consumer.acknowledgeCumulative(held.get(held.size() - 1).id(), transaction);
        if (commit) {
            transaction.commit();
            script.forget();
        } else {
            transaction.abort();
        }
        consumer.close();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    /**
     * T24: the second transaction's vector names segments where nothing has come since the first one's commit; that is
     * no conflict.
     */
    private static void cumulativeWithoutMove(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        StreamConsumer<String> consumer = stage.stream("sub");
        SplitScenarios.sendRound(script, producer, keys, null);
        List<Message<String>> held = Receiving.exactly(consumer::receive, script.size());
        Transaction first = stage.begin();
        consumer.acknowledgeCumulative(held.get(held.size() - 1).id(), first);
        first.commit();
        script.send(producer, keys.get(0), null);
        Transaction second = stage.begin();
        consumer.acknowledgeCumulative(Receiving.one(consumer::receive).id(), second);
        second.commit();
        consumer.close();
        script.forget();
        script.send(producer, keys.get(1), null);
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    /** T22, T23: three of ten messages of one batch. */
    private static void insideBatch(Stage stage, boolean commit) throws Exception {
        stage.createTopic(1);
        RedeliveryScenarios.sendBatch(stage);
        QueueConsumer<String> consumer = stage.queue("sub");
        Transaction transaction = stage.begin();
        Receiving.first(consumer::receive, 10).subList(2, 5)
                .forEach(message -> consumer.acknowledge(message.id(), transaction));
        if (commit) {
            transaction.commit();
            consumer.close();
            left(stage, without(numbered(0, 10), numbered(2, 5)), "after the commit");
        } else {
            transaction.abort();
            consumer.close();
            left(stage, numbered(0, 10), "after the abort");
        }
    }

    static List<String> without(List<String> values, List<String> taken) {
        return values.stream().filter(value -> !taken.contains(value)).toList();
    }

    /** T22, T23: up to the middle of a batch. */
    private static void cumulativeInsideBatch(Stage stage) throws Exception {
        stage.createTopic(1);
        RedeliveryScenarios.sendBatch(stage);
        StreamConsumer<String> consumer = stage.stream("sub");
        Transaction transaction = stage.begin();
        consumer.acknowledgeCumulative(Receiving.first(consumer::receive, 10).get(3).id(), transaction);
        transaction.commit();
        consumer.close();
        Expect.equal("left after the commit",
                Receiving.values(Receiving.exactly(stage.stream("sub")::receive, 6)), numbered(4, 10));
    }

    /** T24: the second transaction to acknowledge a message cannot be committed; the first one can. */
    private static void conflict(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        Message<String> message = Receiving.first(consumer::receive, SENT).get(0);
        Transaction first = stage.begin();
        Transaction second = stage.begin();
        consumer.acknowledge(message.id(), first);
        Coordinator.answered(first);
        consumer.acknowledge(message.id(), second);
        Expect.refused("commit with an acknowledgement that another transaction holds", second::commit);
        first.commit();
        consumer.close();
        left(stage, numbered(1, SENT), "after the commit of the first");
    }

    /** E5: nor one that acknowledges a message twice, which its consumer may have been handed twice. */
    private static void twice(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        Message<String> message = Receiving.first(consumer::receive, SENT).get(0);
        Transaction transaction = stage.begin();
        consumer.acknowledge(message.id(), transaction);
        consumer.acknowledge(message.id(), transaction);
        Expect.refused("commit with a message that is acknowledged twice", transaction::commit);
        consumer.close();
        left(stage, numbered(0, SENT), "in the end");
    }

    /** T24: neither can one that acknowledges what is acknowledged for good. */
    private static void alreadyAcknowledged(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        Message<String> message = Receiving.first(consumer::receive, SENT).get(2);
        Transaction first = stage.begin();
        consumer.acknowledge(message.id(), first);
        first.commit();
        Transaction second = stage.begin();
        consumer.acknowledge(message.id(), second);
        Expect.refused("commit with an acknowledgement of an acknowledged message", second::commit);
        consumer.close();
        left(stage, without(numbered(0, SENT), List.of("message 2")), "in the end");
    }

    /** T24: after an abort another transaction may acknowledge the same messages. */
    private static void released(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        Transaction aborted = stage.begin();
        Receiving.first(consumer::receive, SENT).forEach(message -> consumer.acknowledge(message.id(), aborted));
        aborted.abort();
        Transaction committed = stage.begin();
        Receiving.first(consumer::receive, SENT).forEach(message -> consumer.acknowledge(message.id(), committed));
        committed.commit();
        consumer.close();
        left(stage, List.of(), "after the second transaction's commit");
    }

    /** T11, T24: the transaction was aborted behind the client's back; what it acknowledges afterwards is not lost. */
    private static void late(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        List<Message<String>> held = Receiving.first(consumer::receive, SENT);
        Transaction transaction = stage.begin();
        Expect.equal("abort", new Coordinator(stage.client).abort(Coordinator.id(transaction)), "ok");
        held.forEach(message -> consumer.acknowledge(message.id(), transaction));
        Expect.refused("commit", transaction::commit);
        consumer.close();
        left(stage, numbered(0, SENT), "after acknowledgements in an aborted transaction");
    }

    /** T9, T23: the broker aborts it by itself, and the messages come again. */
    private static void timedOut(Stage stage) throws Exception {
        stage.createTopic(1);
        sendNumbered(stage, 0, SENT);
        PulsarClient hasty = stage.newClient(Limits.TRANSACTION_TIMEOUT_SHORT);
        QueueConsumer<String> consumer = stage.keep(hasty.newQueueConsumer(Schema.string())
                .topic(stage.topic)
                .subscriptionName("sub")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe());
        Transaction transaction = hasty.newTransaction();
        Receiving.first(consumer::receive, SENT).forEach(message -> consumer.acknowledge(message.id(), transaction));
        Receiving.sameInAnyOrder("what came again",
                Receiving.values(Receiving.first(consumer::receive, SENT)), numbered(0, SENT));
        Expect.refused("commit after the timeout", transaction::commit);
    }

    /** T20, T22, T23: the messages were received before the split and are acknowledged after it. */
    private static void onSealedParent(Stage stage, boolean commit) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        List<Message<String>> held = Receiving.first(consumer::receive, SENT);
        Transaction transaction = stage.begin();
        consumer.acknowledge(held.get(0).id(), transaction);
        stage.split(0);
        held.subList(1, SENT).forEach(message -> consumer.acknowledge(message.id(), transaction));
        sendNumbered(stage, SENT, SENT + 2);
        List<String> children = Receiving.values(Receiving.first(consumer::receive, 2));
        Receiving.sameInAnyOrder("from the children", children, numbered(SENT, SENT + 2));
        if (commit) {
            transaction.commit();
            consumer.close();
            left(stage, numbered(SENT, SENT + 2), "after the commit");
        } else {
            transaction.abort();
            consumer.close();
            left(stage, numbered(0, SENT + 2), "after the abort");
        }
    }

    /** T20, T22, T23: one transaction acknowledges on the parent and, once that is drained, on its children. */
    private static void cumulativeAcrossSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(1));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        StreamConsumer<String> consumer = stage.stream("sub");
        SplitScenarios.sendRound(script, producer, keys, null);
        List<Message<String>> held = Receiving.first(consumer::receive, script.size());
        stage.split(0);
        Transaction transaction = stage.begin();
        consumer.acknowledgeCumulative(held.get(held.size() - 1).id(), transaction);
        SplitScenarios.sendRound(script, producer, keys, transaction);
        transaction.commit();
        consumer.close();
        // The acknowledged round is done with; the round of the transaction itself is on the children.
        script.forgetFirst(held.size());
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    /** T33: each subscription has its own. */
    private static void twoSubscriptions(Stage stage) throws Exception {
        QueueConsumer<String> one = holder(stage);
        QueueConsumer<String> other = stage.queue("other");
        Transaction transaction = stage.begin();
        Receiving.first(one::receive, SENT).forEach(message -> one.acknowledge(message.id(), transaction));
        other.acknowledge(Receiving.first(other::receive, SENT).get(5).id(), transaction);
        transaction.commit();
        one.close();
        other.close();
        left(stage, List.of(), "of the first subscription");
        Receiving.sameInAnyOrder("left of the other subscription",
                Receiving.values(Receiving.exactly(stage.queue("other")::receive, 5)), numbered(0, 5));
    }

    /** T22, T23: outside and inside transactions, committed and aborted, in one handful. */
    private static void mixed(Stage stage) throws Exception {
        QueueConsumer<String> consumer = holder(stage);
        List<Message<String>> held = Receiving.first(consumer::receive, SENT);
        Transaction committed = stage.begin();
        Transaction aborted = stage.begin();
        for (int number = 0; number < SENT; number++) {
            switch (number % 3) {
                case 0 -> consumer.acknowledge(held.get(number).id());
                case 1 -> consumer.acknowledge(held.get(number).id(), committed);
                default -> consumer.acknowledge(held.get(number).id(), aborted);
            }
        }
        aborted.abort();
        committed.commit();
        consumer.close();
        left(stage, List.of(held.get(2).value(), held.get(5).value()), "after both ends");
    }
}
