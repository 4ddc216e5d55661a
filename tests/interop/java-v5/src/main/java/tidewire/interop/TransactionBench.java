package tidewire.interop;

import com.google.gson.Gson;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * What transactions take with the Java v5 client; `scripts/bench_transactions.py` runs it against us and against Pulsar.
 *
 * <p>Arguments: {@code SERVICE_URL HTTP_URL PHASE NUMBER...}. Prints one JSON object on its last line; times are in
 * milliseconds.
 */
public final class TransactionBench {
    private static final Gson JSON = new Gson();
    private static final Duration TIMEOUT = Duration.ofMinutes(10);
    private static final int IN_FLIGHT = 64;
    private static final int WARM_UP = 30;
    private static final String VALUE = "x".repeat(100);

    private final PulsarClient client;
    private final BenchTopics topics;

    private TransactionBench(PulsarClient client, BenchTopics topics) {
        this.client = client;
        this.topics = topics;
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = Stage.connect(arguments[0], TIMEOUT)) {
            TransactionBench bench = new TransactionBench(client, new BenchTopics(client, new Admin(arguments[1])));
            int number = Integer.parseInt(arguments[3]);
            Object result = switch (arguments[2]) {
                case "commits" -> bench.commits(number);
                case "delivery" -> bench.delivery(number);
                case "publish" -> bench.publish(number);
                case "rate" -> bench.rate(number, Integer.parseInt(arguments[4]));
                case "history" -> bench.history(arguments[4], number, arguments[5].equals("transactions"));
                case "park" -> bench.park(number, Integer.parseInt(arguments[4]));
                default -> throw new IllegalArgumentException(arguments[2]);
            };
            System.out.println(JSON.toJson(result));
        }
    }

    /** By number of segments written to, the time from the call of commit to its return. */
    private Map<Integer, List<Double>> commits(int rounds) throws Exception {
        String topic = topics.create("commits", 64);
        List<String> keys = topics.keys(topic);
        Map<Integer, List<Double>> took = BenchTopics.byParticipants();
        // Every segment is opened by its first message, which is not what is measured.
        List<Integer> order = new ArrayList<>(Collections.nCopies(WARM_UP, 64));
        order.addAll(BenchTopics.shuffled(rounds));
        Random random = new Random(2);
        try (Producer<String> producer = producer(topic)) {
            for (int round = 0; round < order.size(); round++) {
                List<String> chosen = new ArrayList<>(keys);
                Collections.shuffle(chosen, random);
                Transaction transaction = client.newTransaction();
                BenchTopics.sendAll(producer, transaction, chosen.subList(0, order.get(round)), VALUE);
                long start = System.nanoTime();
                transaction.commit();
                if (round >= WARM_UP) {
                    took.get(order.get(round)).add(since(start));
                }
            }
        }
        return took;
    }

    /** The time from commit's return until a parked consumer has the message; 0 if it has it before. */
    private List<Double> delivery(int rounds) throws Exception {
        String topic = topics.create("delivery", 1);
        List<Double> took = new ArrayList<>();
        BlockingQueue<Long> arrived = new ArrayBlockingQueue<>(16);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (Producer<String> producer = producer(topic);
                StreamConsumer<String> consumer = consumer(topic, "parked")) {
            Thread receiver = new Thread(() -> {
                try {
                    for (int round = 0; round < WARM_UP + rounds; round++) {
                        Message<String> message = consumer.receive();
                        arrived.put(System.nanoTime());
                        consumer.acknowledgeCumulative(message.id());
                    }
                } catch (Exception e) {
                    failure.set(e);
                }
            });
            receiver.setDaemon(true);
            receiver.start();
            for (int round = 0; round < WARM_UP + rounds; round++) {
                Transaction transaction = client.newTransaction();
                producer.newMessage().key("key").value(VALUE).transaction(transaction).send();
                transaction.commit();
                long returned = System.nanoTime();
                long received = arrived.take();
                if (round >= WARM_UP) {
                    took.add(Math.max(0, received - returned) / 1e6);
                }
                Thread.sleep(2); // The consumer is to be parked again, and not about to be.
            }
            receiver.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        return took;
    }

    /** One send at a time: outside of transactions, the first of a transaction on its segment, and later ones. */
    private Map<String, List<Double>> publish(int rounds) throws Exception {
        String topic = topics.create("publish", 1);
        Map<String, List<Double>> took = new TreeMap<>();
        for (String kind : List.of("outside", "first", "later")) {
            took.put(kind, new ArrayList<>());
        }
        try (Producer<String> producer = producer(topic)) {
            for (int round = 0; round < WARM_UP + rounds; round++) {
                Transaction transaction = client.newTransaction();
                double first = send(producer, transaction);
                double later = send(producer, transaction);
                transaction.commit();
                double outside = send(producer, null);
                if (round >= WARM_UP) {
                    took.get("first").add(first);
                    took.get("later").add(later);
                    took.get("outside").add(outside);
                }
            }
        }
        return took;
    }

    private static double send(Producer<String> producer, Transaction transaction) throws Exception {
        var message = producer.newMessage().key("key").value(VALUE);
        if (transaction != null) {
            message.transaction(transaction);
        }
        long start = System.nanoTime();
        message.send();
        return since(start);
    }

    /** Transactions of one message a second, 64 in flight, in each of several windows one after another. */
    private List<Double> rate(int windowSeconds, int windows) throws Exception {
        String topic = topics.create("rate", 4);
        AtomicIntegerArray done = new AtomicIntegerArray(windows);
        long start = System.nanoTime();
        long window = windowSeconds * 1_000_000_000L;
        try (Producer<String> producer = producer(topic)) {
            Workers.start(IN_FLIGHT, () -> {
                for (int number = 0; ; number++) {
                    Transaction transaction = client.newTransaction();
                    producer.newMessage().key("key-" + number).value(VALUE).transaction(transaction).send();
                    transaction.commit();
                    int in = (int) ((System.nanoTime() - start) / window);
                    if (in >= windows) {
                        return;
                    }
                    done.incrementAndGet(in);
                }
            }).join();
        }
        List<Double> rates = new ArrayList<>();
        for (int in = 0; in < windows; in++) {
            rates.add(done.get(in) / (double) windowSeconds);
        }
        return rates;
    }

    /** Leave messages in a topic of one segment, each in a transaction of its own, every tenth aborted, or in none. */
    private Map<String, Integer> history(String name, int messages, boolean inTransactions) throws Exception {
        AtomicInteger left = new AtomicInteger(messages);
        try (Producer<String> producer = producer(topics.createNamed(name, 1))) {
            Workers.start(IN_FLIGHT, () -> {
                int number;
                while ((number = left.getAndDecrement()) > 0) {
                    if (!inTransactions) {
                        producer.newMessage().key("key").value(VALUE).send();
                        continue;
                    }
                    Transaction transaction = client.newTransaction();
                    producer.newMessage().key("key").value(VALUE).transaction(transaction).send();
                    if (number % 10 == 0) {
                        transaction.abort();
                    } else {
                        transaction.commit();
                    }
                }
            }).join();
        }
        return Map.of("messages", messages);
    }

    /** Park consumers and leave transactions open, say so, and end when a line comes on standard input. */
    private Map<String, Integer> park(int consumers, int transactions) throws Exception {
        String topic = topics.create("park", 1);
        List<AutoCloseable> open = new ArrayList<>();
        Producer<String> producer = producer(topic);
        open.add(producer);
        producer.newMessage().key("key").value(VALUE).send();
        for (int number = 0; number < consumers; number++) {
            StreamConsumer<String> consumer = consumer(topic, "parked-" + number);
            consumer.acknowledgeCumulative(consumer.receive().id());
            open.add(consumer);
        }
        List<Transaction> begun = new ArrayList<>();
        for (int number = 0; number < transactions; number++) {
            Transaction transaction = client.newTransaction();
            producer.newMessage().key("key").value(VALUE).transaction(transaction).send();
            begun.add(transaction);
        }
        System.out.println("parked");
        System.out.flush();
        System.in.read();
        for (Transaction transaction : begun) {
            transaction.abort();
        }
        for (AutoCloseable each : open) {
            each.close();
        }
        return Map.of("consumers", consumers, "transactions", transactions);
    }

    private Producer<String> producer(String topic) throws Exception {
        return topics.unbatched(topic, Schema.string());
    }

    private StreamConsumer<String> consumer(String topic, String subscription) throws Exception {
        return client.newStreamConsumer(Schema.string())
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe();
    }

    private static double since(long startNanos) {
        return (System.nanoTime() - startNanos) / 1e6;
    }
}
