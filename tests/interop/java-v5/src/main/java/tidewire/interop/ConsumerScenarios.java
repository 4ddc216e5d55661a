package tidewire.interop;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;

/** Stream and queue consumers: who gets what, and what a subscription remembers. */
final class ConsumerScenarios {
    private ConsumerScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("queue_consumer_gets_all", ConsumerScenarios::queueGetsAll);
        scenarios.put("queue_consumers_share", ConsumerScenarios::queueConsumersShare);
        scenarios.put("queue_consumer_through_split", ConsumerScenarios::queueThroughSplit);
        scenarios.put("two_subscriptions_are_independent", ConsumerScenarios::twoSubscriptions);
        scenarios.put("reopen_gets_nothing", ConsumerScenarios::reopenGetsNothing);
        scenarios.put("reopen_under_another_name", ConsumerScenarios::reopenUnderAnotherName);
        scenarios.put("unacknowledged_comes_again", ConsumerScenarios::unacknowledgedComesAgain);
    }

    private static void queueGetsAll(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        QueueConsumer<String> consumer = stage.queue("work");
        writeMixed(stage, script, keys);
        script.check(Stage.receive(consumer, script.size()));
        consumer.close();
    }

    /** Shared: two consumers of one subscription get everything between them and nothing twice. */
    private static void queueConsumersShare(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        QueueConsumer<String> one = stage.queue("work");
        QueueConsumer<String> other = stage.queue("work");
        writeMixed(stage, script, keys);
        List<String> received = new ArrayList<>();
        Instant deadline = Instant.now().plus(Limits.DELIVERY_MAX);
        while (received.size() < script.size() && Instant.now().isBefore(deadline)) {
            take(one, Limits.TURN, received);
            take(other, Limits.TURN, received);
        }
        take(one, Limits.QUIET, received);
        take(other, Limits.QUIET, received);
        everythingOnce(script, received);
    }

    private static void take(QueueConsumer<String> consumer, Duration wait, List<String> received) throws Exception {
        Message<String> message = consumer.receive(wait);
        if (message != null) {
            received.add(message.value());
            consumer.acknowledge(message.id());
        }
    }

    /** A queue promises no order, neither between two consumers nor between a parent and its children. */
    private static void everythingOnce(Script script, List<String> received) throws Failure {
        Failure.unless(received.size() == script.size() && received.stream().distinct().count() == script.size(),
                "sent " + script.size() + ", received " + received.size() + ": " + received);
    }

    private static void queueThroughSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        QueueConsumer<String> consumer = stage.queue("work");
        writeMixed(stage, script, keys);
        stage.split(2);
        writeMixed(stage, script, keys);
        everythingOnce(script, Stage.receive(consumer, script.size()).stream().map(Message::value).toList());
    }

    private static void twoSubscriptions(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        writeMixed(stage, script, keys);
        script.check(Stage.receive(stage.stream("one"), script.size()));
        script.check(Stage.receive(stage.stream("other"), script.size()));
    }

    /** What was acknowledged stays so: the successor of the same name gets only what was sent since. */
    private static void reopenGetsNothing(Stage stage) throws Exception {
        reopen(stage, "reader");
    }

    /** Closing is leaving: a successor of another name gets the segments at once. */
    private static void reopenUnderAnotherName(Stage stage) throws Exception {
        reopen(stage, "successor");
    }

    private static void reopen(Stage stage, String successor) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        writeMixed(stage, script, keys);
        StreamConsumer<String> first = stage.stream("sub");
        script.check(Stage.receive(first, script.size()));
        first.close();
        script.forget();
        StreamConsumer<String> second = stage.stream("sub", successor);
        Stage.expectNothing(second, "everything was acknowledged");
        writeMixed(stage, script, keys);
        script.check(Stage.receive(second, script.size()));
    }

    /** What was received but not acknowledged is delivered again to the successor, in order. */
    private static void unacknowledgedComesAgain(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        writeMixed(stage, script, keys);
        StreamConsumer<String> first = stage.stream("sub");
        for (int number = 0; number < script.size(); number++) {
            Failure.unless(first.receive(Limits.DELIVERY_MAX) != null, "only " + number + " messages came");
        }
        first.close();
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    /** A round outside transactions, one committed, one aborted, one more outside. */
    private static void writeMixed(Stage stage, Script script, List<String> keys) throws Exception {
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        Transaction committed = stage.begin();
        Transaction aborted = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, committed);
        SplitScenarios.sendRound(script, producer, keys, aborted);
        committed.commit();
        aborted.abort();
        script.drop(aborted);
        SplitScenarios.sendRound(script, producer, keys, null);
        producer.close();
    }
}
