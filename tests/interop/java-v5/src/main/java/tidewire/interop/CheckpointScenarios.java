package tidewire.interop;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.CheckpointConsumerBuilder;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Consumers that keep their position themselves, and leave nothing at the broker. */
final class CheckpointScenarios {
    private CheckpointScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("checkpoint_consumer_from_earliest", CheckpointScenarios::fromEarliest);
        scenarios.put("checkpoint_consumer_from_latest", CheckpointScenarios::fromLatest);
        scenarios.put("checkpoint_consumer_resumes", CheckpointScenarios::resumes);
        scenarios.put("checkpoint_inside_a_batch", CheckpointScenarios::insideBatch);
        scenarios.put("checkpoint_consumer_through_split", CheckpointScenarios::throughSplit);
        scenarios.put("checkpoint_resumes_after_split", CheckpointScenarios::resumesAfterSplit);
        scenarios.put("checkpoint_consumer_waits_for_transactions", CheckpointScenarios::waitsForTransactions);
        scenarios.put("reader_from_earliest_over_aborted_data", CheckpointScenarios::overAborted);
        scenarios.put("checkpoint_receive_several", CheckpointScenarios::receiveSeveral);
        scenarios.put("checkpoint_group_shares_segments", CheckpointScenarios::group);
        scenarios.put("checkpoint_group_through_split", CheckpointScenarios::groupThroughSplit);
    }

    private static CheckpointConsumerBuilder<String> from(Stage stage, Checkpoint start) {
        return stage.client.newCheckpointConsumer(Schema.string()).topic(stage.topic).startPosition(start);
    }

    /** Two of them each see everything. */
    private static void fromEarliest(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        CheckpointConsumer<String> one = stage.keep(from(stage, Checkpoint.earliest()).create());
        CheckpointConsumer<String> other = stage.keep(from(stage, Checkpoint.earliest()).create());
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Receiving.exactly(one::receive, script.size()));
        script.check(Receiving.exactly(other::receive, script.size()));
    }

    private static void fromLatest(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        CheckpointConsumer<String> consumer = stage.keep(from(stage, Checkpoint.latest()).create());
        Receiving.nothing(consumer::receive, "everything was sent before");
        script.forget();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Receiving.exactly(consumer::receive, script.size()));
    }

    /** From a checkpoint that went through bytes, as through somebody's database. */
    private static void resumes(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        for (int round = 0; round < 4; round++) {
            SplitScenarios.sendRound(script, producer, keys, null);
        }
        CheckpointConsumer<String> first = stage.keep(from(stage, Checkpoint.earliest()).create());
        List<Message<String>> received = new ArrayList<>(Receiving.first(first::receive, script.size() / 2));
        byte[] stored = first.checkpoint().toByteArray();
        first.close();
        CheckpointConsumer<String> second = stage.keep(from(stage, Checkpoint.fromByteArray(stored)).create());
        received.addAll(Receiving.exactly(second::receive, script.size() - received.size()));
        script.check(received);
    }

    private static void insideBatch(Stage stage) throws Exception {
        stage.createTopic(1);
        Script script = new Script();
        Producer<String> producer =
                stage.producer(MessageScenarios.inOneBatch(stage.client.newProducer(Schema.string()), 10));
        List<java.util.concurrent.CompletableFuture<?>> receipts = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            receipts.add(producer.async().newMessage().key("k").value(script.next("k", null)).send());
        }
        Expect.allDone(receipts);
        CheckpointConsumer<String> first = stage.keep(from(stage, Checkpoint.earliest()).create());
        List<Message<String>> received = new ArrayList<>(Receiving.first(first::receive, 4));
        Checkpoint fourRead = first.checkpoint();
        first.close();
        received.addAll(Receiving.exactly(stage.keep(from(stage, fourRead).create())::receive, 6));
        script.check(received);
    }

    /** T20: no order between parent and children is promised here, but everything comes once. */
    private static void throughSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        CheckpointConsumer<String> consumer = stage.keep(from(stage, Checkpoint.earliest()).create());
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.split(0);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.checkContent(Receiving.exactly(consumer::receive, script.size()));
    }

    /** T20: a checkpoint from before the split leads to the rest of the parent and to all of its children. */
    private static void resumesAfterSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        CheckpointConsumer<String> first = stage.keep(from(stage, Checkpoint.earliest()).create());
        List<Message<String>> received = new ArrayList<>(Receiving.exactly(first::receive, script.size()));
        Checkpoint before = first.checkpoint();
        first.close();
        SplitScenarios.sendRound(script, producer, keys, null);
        stage.split(1);
        SplitScenarios.sendRound(script, producer, keys, null);
        CheckpointConsumer<String> second = stage.keep(from(stage, before).create());
        received.addAll(Receiving.exactly(second::receive, script.size() - received.size()));
        script.checkContent(received);
    }

    /** T14: nothing of an open transaction, nor what stands behind it; all of it after the commit. */
    private static void waitsForTransactions(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        CheckpointConsumer<String> consumer = stage.keep(from(stage, Checkpoint.earliest()).create());
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        SplitScenarios.sendRound(script, producer, keys, null);
        Receiving.nothing(consumer::receive, "the transaction is open and in front");
        transaction.commit();
        script.check(Receiving.exactly(consumer::receive, script.size()));
    }

    /** T14, T17: who reads everything from its beginning long afterwards sees nothing of what was aborted. */
    private static void overAborted(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        for (int round = 0; round < 5; round++) {
            Transaction aborted = stage.begin();
            Transaction committed = stage.begin();
            SplitScenarios.sendRound(script, producer, keys, aborted);
            SplitScenarios.sendRound(script, producer, keys, committed);
            SplitScenarios.sendRound(script, producer, keys, null);
            aborted.abort();
            committed.commit();
            script.drop(aborted);
        }
        Transaction last = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, last);
        last.abort();
        script.drop(last);
        script.check(Receiving.exactly(
                stage.keep(from(stage, Checkpoint.earliest()).create())::receive, script.size()));
        script.check(Stage.receive(stage.stream("stream"), script.size()));
    }

    private static void receiveSeveral(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        for (int round = 0; round < 5; round++) {
            SplitScenarios.sendRound(script, producer, keys, null);
        }
        CheckpointConsumer<String> consumer = stage.keep(from(stage, Checkpoint.earliest()).create());
        List<Message<String>> received = new ArrayList<>();
        for (int handful = 0; received.size() < script.size() && handful < 100; handful++) {
            consumer.receiveMulti(6, Duration.ofSeconds(1)).forEach(received::add);
        }
        script.check(received);
        Checkpoint end = Expect.done(consumer.async().checkpoint());
        Expect.done(consumer.async().close());
        Receiving.nothing(stage.keep(from(stage, end).create())::receive, "the checkpoint is at the end");
    }

    /** Members of one group have different segments, which together are all. */
    private static void group(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        List<CheckpointConsumer<String>> members = twoMembers(stage);
        SplitScenarios.sendRound(script, stage.producer(), keys, null);
        List<Message<String>> received = new ArrayList<>();
        Expect.equal("members that got messages", receive(members, script.size(), received), 2);
        script.check(received);
    }

    /** They go on to the children, and no segment that is read already moves to be read again. */
    private static void groupThroughSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        List<CheckpointConsumer<String>> members = twoMembers(stage);
        List<Message<String>> received = new ArrayList<>();
        for (int segment = 0; segment < 3; segment++) {
            SplitScenarios.sendRound(script, producer, keys, null);
            Expect.equal("members that got messages", receive(members, script.size() - received.size(), received), 2);
            if (segment < 2) {
                stage.split(segment);
            }
        }
        script.check(received);
    }

    private static List<CheckpointConsumer<String>> twoMembers(Stage stage) throws Exception {
        List<CheckpointConsumer<String>> members = new ArrayList<>();
        for (String name : List.of("one", "other")) {
            members.add(stage.keep(
                    from(stage, Checkpoint.earliest()).consumerGroup("group").consumerName(name).create()));
        }
        // Segments that move would be read again by their new reader: each begins where it was told to.
        Thread.sleep(Limits.MOVE_MAX.toMillis());
        return members;
    }

    /** Adds what the members get between them, which is so many messages; how many of them got some. */
    private static int receive(
            List<CheckpointConsumer<String>> members, int count, List<Message<String>> received) throws Exception {
        Set<CheckpointConsumer<String>> served = new HashSet<>();
        int missing = count;
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (missing > 0 && System.nanoTime() < deadline) {
            for (CheckpointConsumer<String> member : members) {
                Message<String> message = member.receive(Limits.TURN);
                if (message != null) {
                    received.add(message);
                    served.add(member);
                    missing--;
                }
            }
        }
        for (CheckpointConsumer<String> member : members) {
            Receiving.nothing(member::receive, "everything came once");
        }
        return served.size();
    }
}
