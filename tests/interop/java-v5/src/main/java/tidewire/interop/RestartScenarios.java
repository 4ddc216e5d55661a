package tidewire.interop;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;

/** The broker is killed and restarted under the client's feet. */
final class RestartScenarios {
    private RestartScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios, Operator operator) {
        scenarios.put("open_transaction_survives_kill", stage -> openTransactionSurvives(stage, operator));
        scenarios.put("ended_transactions_survive_kill", stage -> endedTransactionsSurvive(stage, operator));
        scenarios.put("split_topic_survives_kill", stage -> splitTopicSurvives(stage, operator));
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
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }
}
