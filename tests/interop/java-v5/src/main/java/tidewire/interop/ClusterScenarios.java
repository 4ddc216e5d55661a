package tidewire.interop;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;

/** What a topic consists of moves between the brokers of a cluster under the client's feet. */
final class ClusterScenarios {
    private ClusterScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios, Operator operator) {
        scenarios.put("moved_segments_are_followed", stage -> movedSegments(stage, operator));
        scenarios.put("new_controller_is_followed", stage -> newController(stage, operator));
        scenarios.put("transaction_outlives_its_coordinator", stage -> coordinatorDies(stage, operator));
    }

    /** C21, E13: producer, ordered consumer, queue consumer and an open transaction follow all segments. */
    private static void movedSegments(Stage stage, Operator operator) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        StreamConsumer<String> ordered = stage.stream("ordered");
        QueueConsumer<String> queue = stage.queue("queue");
        SplitScenarios.sendRound(script, producer, keys, null);
        List<Message<String>> first = Stage.receive(ordered, script.size());
        script.check(first);
        Set<String> seen = new HashSet<>(Receiving.values(first));
        Set<String> queued = new HashSet<>(Receiving.values(Stage.receive(queue, script.size())));
        Expect.equal("the queue before the move", queued, Set.copyOf(script.values()));
        script.forget();
        Transaction transaction = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, transaction);
        operator.ask("MOVE " + stage.topic);
        SplitScenarios.sendRound(script, producer, keys, transaction);
        transaction.commit();
        SplitScenarios.sendRound(script, producer, keys, null);
        // An acknowledgement outside transactions gets no answer, so the last ones before the move may be lost.
        List<Message<String>> second = Stage.receive(ordered, script.size(), seen);
        second.removeIf(message -> seen.contains(message.value()));
        script.check(second);
        Set<String> later = new HashSet<>(Receiving.values(Stage.receive(queue, script.size())));
        later.removeAll(queued);
        Expect.equal("the queue behind the move", later, Set.copyOf(script.values()));
    }

    /** C15, D10: two ordered consumers register at the new controller, and share what a split makes. */
    private static void newController(Stage stage, Operator operator) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        StreamConsumer<String> one = stage.stream("sub", "one");
        StreamConsumer<String> other = stage.stream("sub", "other");
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        List<Message<String>> received = new ArrayList<>(SharingScenarios.receiveFrom(List.of(one, other), script.size()));
        script.check(received);
        // Acknowledgements are sent a moment later, and nobody waits for them.
        Thread.sleep(Limits.QUIET.toMillis());
        script.forget();
        operator.ask("DEPOSE " + stage.topic);
        stage.split(0);
        stage.split(1);
        for (int round = 0; round < 3; round++) {
            SplitScenarios.sendRound(script, producer, keys, null);
        }
        // What was delivered and not yet acknowledged when its consumer lost its connection or the segment comes again.
        Set<String> seen = new HashSet<>(Receiving.values(received));
        List<Message<String>> behind = new ArrayList<>();
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (behind.size() < script.size() && System.nanoTime() < deadline) {
            for (Message<String> message : SharingScenarios.receiveFrom(List.of(one, other), 1)) {
                if (seen.add(message.value())) {
                    behind.add(message);
                }
            }
        }
        script.check(behind);
    }

    /** T10, D17: the broker that owns the transaction's coordinator dies between its sends and the commit. */
    private static void coordinatorDies(Stage stage, Operator operator) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction committed = stage.begin();
        Transaction aborted = stage.begin();
        SplitScenarios.sendRound(script, producer, keys, committed);
        SplitScenarios.sendRound(script, producer, keys, aborted);
        operator.ask("KILL coordinator://" + Coordinator.id(committed).getMostSigBits());
        committed.commit();
        aborted.abort();
        script.drop(aborted);
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }
}
