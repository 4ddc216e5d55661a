package tidewire.interop;

import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.ProducerBuilder;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.QueueConsumerBuilder;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * What one scenario plays with: a topic name nobody else uses, the REST calls, the program's client, and producers and
 * consumers that are closed behind it.
 *
 * <p>One client serves all scenarios, as it would in an application; closing one costs it two seconds of its own.
 */
final class Stage implements AutoCloseable {
    final Admin admin;
    /** The topic's local name, for REST. */
    final String name;
    /** The topic's full name, for the client. */
    final String topic;
    /** The full name of the regular topic of that local name. */
    final String regular;
    final PulsarClient client;
    private final String serviceUrl;
    private final String httpUrl;
    private final Deque<AutoCloseable> open = new ArrayDeque<>();

    Stage(PulsarClient client, String serviceUrl, String httpUrl, String name) {
        this.client = client;
        this.serviceUrl = serviceUrl;
        this.admin = new Admin(httpUrl);
        this.httpUrl = httpUrl;
        this.name = name;
        this.topic = "topic://public/default/" + name;
        this.regular = "persistent://public/default/" + name;
    }

    String serviceUrl() {
        return serviceUrl;
    }

    /** Creates the scenario's topic and returns its segments. */
    List<Admin.Segment> createTopic(int segments) throws Exception {
        admin.create(name, segments).expect(204, "PUT " + name);
        return admin.segments(name);
    }

    /** The REST calls on topics of another namespace, which exists afterwards. */
    Admin inNamespace(String namespace) throws Exception {
        Admin there = new Admin(httpUrl, namespace);
        there.createNamespace();
        return there;
    }

    void merge(int one, int other) throws Exception {
        admin.merge(name, one, other).expect(204, "merge of segments " + one + " and " + other);
    }

    void split(int segment) throws Exception {
        admin.split(name, segment).expect(204, "split of segment " + segment);
    }

    /** A further client, for stories about connections or other timeouts. */
    PulsarClient newClient(Duration transactionTimeout) throws PulsarClientException {
        PulsarClient opened = connect(serviceUrl, transactionTimeout);
        open.push(opened);
        return opened;
    }

    /** The client of regular topics, for stories in which not everybody uses the v5 one. */
    org.apache.pulsar.client.api.PulsarClient oldClient() throws Exception {
        return keep(org.apache.pulsar.client.api.PulsarClient.builder().serviceUrl(serviceUrl).build());
    }

    static PulsarClient connect(String serviceUrl, Duration transactionTimeout) throws PulsarClientException {
        return PulsarClient.builder()
                .serviceUrl(serviceUrl)
                .operationTimeout(Limits.OPERATION_MAX)
                .transactionPolicy(TransactionPolicy.builder().timeout(transactionTimeout).build())
                .build();
    }

    Producer<String> producer() throws PulsarClientException {
        return producer(client.newProducer(Schema.string()));
    }

    /** Creates what the builder describes, on the scenario's topic. */
    Producer<String> producer(ProducerBuilder<String> builder) throws PulsarClientException {
        Producer<String> producer = builder.topic(topic).sendTimeout(Limits.OPERATION_MAX).create();
        open.push(producer);
        return producer;
    }

    /** Has it closed behind the scenario, however that ends; closing earlier does no harm. */
    <C extends AutoCloseable> C keep(C opened) {
        open.push(opened);
        return opened;
    }

    /** Creates one more topic of the scenario's own beside its first, and returns its full name. */
    String createAnother(String suffix, int segments) throws Exception {
        String local = name + "-" + suffix;
        admin.create(local, segments).expect(204, "PUT " + local);
        return "topic://public/default/" + local;
    }

    /** A producer of any kind of value, of any topic. */
    <T> Producer<T> producer(Schema<T> schema, String ofTopic) throws PulsarClientException {
        return keep(client.newProducer(schema).topic(ofTopic).sendTimeout(Limits.OPERATION_MAX).create());
    }

    <T> QueueConsumer<T> queue(Schema<T> schema, String ofTopic, String subscription) throws PulsarClientException {
        return keep(queueBuilder(schema, ofTopic, subscription).subscribe());
    }

    <T> QueueConsumerBuilder<T> queueBuilder(Schema<T> schema, String ofTopic, String subscription) {
        return client.newQueueConsumer(schema)
                .topic(ofTopic)
                .subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST);
    }

    <T> StreamConsumer<T> stream(Schema<T> schema, String ofTopic, String subscription) throws PulsarClientException {
        return keep(client.newStreamConsumer(schema)
                .topic(ofTopic)
                .subscriptionName(subscription)
                .consumerName("reader")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe());
    }

    Transaction begin() throws PulsarClientException {
        return client.newTransaction();
    }

    StreamConsumer<String> stream(String subscription) throws PulsarClientException {
        return stream(subscription, "reader");
    }

    StreamConsumer<String> stream(String subscription, String name) throws PulsarClientException {
        StreamConsumer<String> consumer = client.newStreamConsumer(Schema.string())
                .topic(topic)
                .subscriptionName(subscription)
                .consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe();
        open.push(consumer);
        return consumer;
    }

    QueueConsumer<String> queue(String subscription) throws PulsarClientException {
        QueueConsumer<String> consumer = client.newQueueConsumer(Schema.string())
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe();
        open.push(consumer);
        return consumer;
    }

    /**
     * Receives and acknowledges until {@code count} different messages came, and then whatever else comes before
     * silence; one that comes twice is in the list twice, and does not stand for another that is still missing.
     */
    static List<Message<String>> receive(StreamConsumer<String> consumer, int count) throws PulsarClientException {
        return receive(consumer, count, Set.of());
    }

    /** Receives what comes until {@code count} different messages beside the {@code known} ones are there. */
    static List<Message<String>> receive(StreamConsumer<String> consumer, int count, Set<String> known)
            throws PulsarClientException {
        List<Message<String>> received = new ArrayList<>();
        Set<String> different = new HashSet<>();
        Instant deadline = Instant.now().plus(Limits.DELIVERY_MAX);
        while (true) {
            Message<String> message = consumer.receive(patience(different.size(), count, deadline));
            if (message == null) {
                return received;
            }
            received.add(message);
            if (!known.contains(message.value())) {
                different.add(message.value());
            }
            consumer.acknowledgeCumulative(message.id());
        }
    }

    static List<Message<String>> receive(QueueConsumer<String> consumer, int count) throws PulsarClientException {
        List<Message<String>> received = new ArrayList<>();
        Set<String> different = new HashSet<>();
        Instant deadline = Instant.now().plus(Limits.DELIVERY_MAX);
        while (true) {
            Message<String> message = consumer.receive(patience(different.size(), count, deadline));
            if (message == null) {
                return received;
            }
            received.add(message);
            different.add(message.value());
            consumer.acknowledge(message.id());
        }
    }

    /** Until everything expected has come we wait up to the deadline; afterwards only as long as silence must last. */
    private static Duration patience(int got, int wanted, Instant deadline) {
        Duration left = Duration.between(Instant.now(), deadline);
        return got < wanted && left.compareTo(Limits.QUIET) > 0 ? left : Limits.QUIET;
    }

    static void expectNothing(StreamConsumer<String> consumer, String why) throws PulsarClientException, Failure {
        Message<String> message = consumer.receive(Limits.QUIET);
        Failure.unless(message == null, why + ", but received " + (message == null ? "" : message.value()));
    }

    @Override
    public void close() throws IOException {
        while (!open.isEmpty()) {
            try {
                open.pop().close();
            } catch (IOException e) {
                throw e;
            } catch (Exception e) {
                throw new IOException(e);
            }
        }
    }
}
