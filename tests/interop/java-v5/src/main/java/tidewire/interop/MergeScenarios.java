package tidewire.interop;

import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;

/** Two neighbouring segments become one under producers, consumers and transactions. */
final class MergeScenarios {
    private MergeScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("merge_shows_in_metadata", MergeScenarios::showsInMetadata);
        scenarios.put("merge_of_wrong_segments_is_refused", MergeScenarios::wrongSegments);
        scenarios.put("order_of_keys_through_merge", MergeScenarios::order);
        scenarios.put("order_of_keys_through_split_and_merge", MergeScenarios::orderThroughBoth);
        scenarios.put("transaction_across_merge", stage -> transactionAcross(stage, true));
        scenarios.put("aborted_transaction_across_merge", stage -> transactionAcross(stage, false));
        scenarios.put("attached_consumer_through_merge", MergeScenarios::attachedThroughMerge);
        scenarios.put("queue_consumer_through_merge", MergeScenarios::queueThroughMerge);
        scenarios.put("ack_on_merged_parents_in_transaction", MergeScenarios::ackOnParents);
    }

    private static void showsInMetadata(Stage stage) throws Exception {
        stage.createTopic(4);
        stage.merge(1, 2);
        List<Admin.Segment> segments = stage.admin.segments(stage.name);
        for (int parent : List.of(1, 2)) {
            Failure.unless(!segments.get(parent).active() && segments.get(parent).children().equals(List.of(4)),
                    "a parent: " + segments.get(parent));
        }
        Expect.equal("the child", segments.get(4),
                new Admin.Segment(4, 0x4000, 0xbfff, true, List.of(1, 2), List.of()));
        var stats = stage.admin.stats(stage.name).expect(200, "stats").json();
        Expect.equal("active segments", stats.get("activeSegments").getAsInt(), 3);
    }

    private static void wrongSegments(Stage stage) throws Exception {
        stage.createTopic(4);
        stage.admin.merge(stage.name, 0, 2).expect(412, "merge of segments that are no neighbours");
        stage.merge(0, 1);
        stage.admin.merge(stage.name, 1, 2).expect(412, "merge of a sealed segment");
        Expect.equal("segments", stage.admin.segments(stage.name).size(), 5);
    }

    /** T20: both parents are drained before the child, so each key keeps its order for who reads from the beginning. */
    private static void order(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.merge(0, 1);
        SplitScenarios.sendRound(script, producer, keys, null);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T20: a segment is split, its children merged again, and the result split once more. */
    private static void orderThroughBoth(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        StreamConsumer<String> attached = stage.stream("attached");
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.split(0);
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.merge(2, 3);
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.split(4);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(attached, script.size()));
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T20: what it wrote to the parents and to the child ends as one. */
    private static void transactionAcross(Stage stage, boolean commit) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        StreamConsumer<String> attached = stage.stream("attached");
        Producer<String> producer = stage.producer();
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        stage.merge(0, 1);
        SplitScenarios.sendRound(script, producer, keys, null);
        SplitScenarios.sendRound(script, producer, keys, transaction);
        Stage.expectNothing(attached, "every segment has an entry of an open transaction in front");
        if (commit) {
            transaction.commit();
        } else {
            transaction.abort();
            script.drop(transaction);
        }
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(attached, script.size()));
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T20: once it has drained both parents it goes on with the child, by itself. */
    private static void attachedThroughMerge(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        StreamConsumer<String> consumer = stage.stream("attached");
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        List<Message<String>> received = Stage.receive(consumer, script.size());
        stage.merge(0, 1);
        int before = received.size();
        SplitScenarios.sendRound(script, producer, keys, null);
        SplitScenarios.sendRound(script, producer, keys, null);
        received.addAll(Stage.receive(consumer, script.size() - before));
        script.check(received);
    }

    private static void queueThroughMerge(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        QueueConsumer<String> consumer = stage.queue("sub");
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.merge(0, 1);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.checkContent(Stage.receive(consumer, script.size()));
    }

    /** T20, T22, T23: received before the merge, acknowledged after it. */
    private static void ackOnParents(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        QueueConsumer<String> consumer = stage.queue("sub");
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        List<Message<String>> held = Receiving.first(consumer::receive, script.size());
        stage.merge(0, 1);
        Transaction transaction = stage.begin();
        held.forEach(message -> consumer.acknowledge(message.id(), transaction));
        SplitScenarios.sendRound(script, producer, keys, transaction);
        transaction.commit();
        consumer.close();
        script.forgetFirst(held.size());
        AcknowledgementScenarios.left(stage, script.values(), "after the commit");
    }
}
