package tidewire.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Consumers of all scalable topics of a namespace, also of those that come later. */
final class NamespaceScenarios {
    private NamespaceScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("queue_consumer_of_a_namespace", NamespaceScenarios::queue);
        scenarios.put("stream_consumer_of_a_namespace", NamespaceScenarios::stream);
        scenarios.put("namespace_consumer_follows_new_topics", NamespaceScenarios::newTopics);
    }

    /** A namespace nobody else uses, with as many topics of one segment, each with one message that names it. */
    private static Admin namespace(Stage stage, int topics) throws Exception {
        Admin admin = stage.inNamespace(namespaceOf(stage));
        for (int number = 0; number < topics; number++) {
            addTopic(stage, admin, "topic-" + number);
        }
        return admin;
    }

    private static String namespaceOf(Stage stage) {
        return "public/" + stage.name;
    }

    private static void addTopic(Stage stage, Admin admin, String local) throws Exception {
        admin.create(local, 1).expect(204, "PUT " + local);
        stage.producer(Schema.string(), "topic://" + namespaceOf(stage) + "/" + local)
                .newMessage().key("k").value("from " + local).send();
    }

    private static QueueConsumer<String> consumer(Stage stage) throws Exception {
        return stage.keep(stage.client.newQueueConsumer(Schema.string())
                .namespace(namespaceOf(stage))
                .subscriptionName("sub")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe());
    }

    private static void queue(Stage stage) throws Exception {
        namespace(stage, 3);
        QueueConsumer<String> consumer = consumer(stage);
        List<Message<String>> received = Receiving.exactly(consumer::receive, 3);
        received.forEach(message -> consumer.acknowledge(message.id()));
        Receiving.sameInAnyOrder("received", Receiving.values(received),
                List.of("from topic-0", "from topic-1", "from topic-2"));
        consumer.close();
        Receiving.nothing(consumer(stage)::receive, "everything was acknowledged");
    }

    private static void stream(Stage stage) throws Exception {
        namespace(stage, 3);
        StreamConsumer<String> consumer = stage.keep(stage.client.newStreamConsumer(Schema.string())
                .namespace(namespaceOf(stage))
                .subscriptionName("sub")
                .consumerName("reader")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe());
        List<Message<String>> received = Receiving.exactly(consumer::receive, 3);
        Receiving.sameInAnyOrder("received", Receiving.values(received),
                List.of("from topic-0", "from topic-1", "from topic-2"));
        consumer.acknowledgeCumulative(received.get(2).id());
    }

    private static void newTopics(Stage stage) throws Exception {
        Admin admin = namespace(stage, 1);
        QueueConsumer<String> consumer = consumer(stage);
        List<String> received = new ArrayList<>(Receiving.values(Receiving.exactly(consumer::receive, 1)));
        addTopic(stage, admin, "late");
        received.addAll(Receiving.values(Receiving.exactly(consumer::receive, 1)));
        Expect.equal("received", received, List.of("from topic-0", "from late"));
    }
}
