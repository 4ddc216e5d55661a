package tidewire.interop;

import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;

/** Subscriptions that an operator moves over REST; the v5 client has no call for it. */
final class SeekScenarios {
    private SeekScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("seek_back_to_a_time", SeekScenarios::backToTime);
        scenarios.put("seek_under_attached_consumer", SeekScenarios::underAttached);
        scenarios.put("seek_of_queue_subscription", SeekScenarios::queue);
        scenarios.put("seek_to_before_a_split", SeekScenarios::beforeSplit);
        scenarios.put("skip_all_skips_what_is_left", SeekScenarios::skipAll);
        scenarios.put("seek_of_unknown_subscription_is_refused", SeekScenarios::unknown);
    }

    /** A moment that lies between what is sent before it and after it. */
    private static long momentBetween() throws InterruptedException {
        Thread.sleep(20);
        long moment = System.currentTimeMillis();
        Thread.sleep(20);
        return moment;
    }

    private static void backToTime(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.forget();
        long moment = momentBetween();
        SplitScenarios.sendRound(script, producer, keys, null);
        StreamConsumer<String> consumer = stage.stream("sub");
        Stage.receive(consumer, 2 * keys.size());
        consumer.close();
        stage.admin.seek(stage.name, "sub", moment).expect(204, "seek");
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    /**
     * A queue consumer goes on by itself. A stream consumer of this client would drop what comes: it takes everything
     * up to its own last cumulative acknowledgement for a repetition.
     */
    private static void underAttached(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        SplitScenarios.sendRound(script, stage.producer(), keys, null);
        QueueConsumer<String> consumer = stage.queue("sub");
        script.checkContent(Stage.receive(consumer, script.size()));
        stage.admin.seek(stage.name, "sub", 0).expect(204, "seek");
        script.checkContent(Stage.receive(consumer, script.size()));
        consumer.close();
        Receiving.nothing(stage.queue("sub")::receive, "everything was acknowledged again");
    }

    private static void queue(Stage stage) throws Exception {
        stage.createTopic(1);
        AcknowledgementScenarios.sendNumbered(stage, 0, 3);
        long moment = momentBetween();
        AcknowledgementScenarios.sendNumbered(stage, 3, 6);
        QueueConsumer<String> consumer = stage.queue("sub");
        Receiving.first(consumer::receive, 6).forEach(message -> consumer.acknowledge(message.id()));
        consumer.close();
        AcknowledgementScenarios.left(stage, List.of(), "before the seek");
        stage.admin.seek(stage.name, "sub", moment).expect(204, "seek");
        AcknowledgementScenarios.left(stage, AcknowledgementScenarios.numbered(3, 6), "after the seek");
    }

    /** T20: parent and children come again, in the order of each key. */
    private static void beforeSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(1));
        Producer<String> producer = stage.producer();
        Script script = new Script();
        SplitScenarios.sendRound(script, producer, keys, null);
        StreamConsumer<String> consumer = stage.stream("sub");
        stage.split(0);
        SplitScenarios.sendRound(script, producer, keys, null);
        List<Message<String>> received = Stage.receive(consumer, script.size());
        script.check(received);
        consumer.close();
        stage.admin.seek(stage.name, "sub", 0).expect(204, "seek");
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    private static void skipAll(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Producer<String> producer = stage.producer();
        StreamConsumer<String> consumer = stage.stream("sub");
        Script script = new Script();
        SplitScenarios.sendRound(script, producer, keys, null);
        consumer.close();
        stage.admin.skipAll(stage.name, "sub").expect(204, "skip-all");
        script.forget();
        SplitScenarios.sendRound(script, producer, keys, null);
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    private static void unknown(Stage stage) throws Exception {
        stage.admin.seek(stage.name, "sub", 0).expect(404, "seek on an unknown topic");
        stage.createTopic(1);
        stage.admin.seek(stage.name, "nobody", 0).expect(404, "seek of an unknown subscription");
        stage.admin.skipAll(stage.name, "nobody").expect(404, "skip-all of an unknown subscription");
    }
}
