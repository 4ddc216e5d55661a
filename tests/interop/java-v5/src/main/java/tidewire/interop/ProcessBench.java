package tidewire.interop;

import com.google.gson.Gson;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * The Pulsar side of {@code scripts/bench_process.py}; {@code scripts/KafkaBench.java} has the same phases.
 *
 * <p>Arguments: {@code SERVICE_URL HTTP_URL PHASE NUMBER...}. The program prints {@code measuring} and
 * {@code measured} around what counts, and one JSON object on its last line.
 */
public final class ProcessBench {
    private static final Duration TIMEOUT = Duration.ofMinutes(10);
    private static final int TRANSACTIONS_IN_FLIGHT = 64;
    private static final int WARM_UP_ROUNDS = 600;
    private static final int SENDS_IN_FLIGHT = 5_000;
    private static final int BYTES_IN_FLIGHT = 16 * 1024 * 1024;

    private final PulsarClient client;
    private final BenchTopics topics;

    private ProcessBench(PulsarClient client, BenchTopics topics) {
        this.client = client;
        this.topics = topics;
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = Stage.connect(arguments[0], TIMEOUT)) {
            ProcessBench bench = new ProcessBench(client, new BenchTopics(client, new Admin(arguments[1])));
            int[] numbers = new int[arguments.length - 3];
            for (int place = 0; place < numbers.length; place++) {
                numbers[place] = Integer.parseInt(arguments[place + 3]);
            }
            Object result = switch (arguments[2]) {
                case "whole" -> bench.whole(numbers[0]);
                case "in-flight" -> bench.inFlight(numbers[0], numbers[1]);
                case "produce" -> bench.produce(numbers[0], numbers[1], numbers[2]);
                default -> throw new IllegalArgumentException(arguments[2]);
            };
            System.out.println(new Gson().toJson(result));
        }
    }

    /** By number of segments written to: the times from begin to commit's return, and of the commit call alone. */
    private Map<String, Map<Integer, List<Double>>> whole(int rounds) throws Exception {
        String topic = topics.create("whole", 64);
        List<String> keys = topics.keys(topic);
        Map<Integer, List<Double>> whole = BenchTopics.byParticipants();
        Map<Integer, List<Double>> commit = BenchTopics.byParticipants();
        List<Integer> order = BenchTopics.inTurn(WARM_UP_ROUNDS);
        order.addAll(BenchTopics.shuffled(rounds));
        Random random = new Random(2);
        byte[] value = new byte[100];
        try (Producer<byte[]> producer = topics.unbatched(topic, Schema.bytes())) {
            for (int round = 0; round < order.size(); round++) {
                if (round == WARM_UP_ROUNDS) {
                    say("measuring");
                }
                Collections.shuffle(keys, random);
                long start = System.nanoTime();
                Transaction transaction = client.newTransaction();
                BenchTopics.sendAll(producer, transaction, keys.subList(0, order.get(round)), value);
                long committing = System.nanoTime();
                transaction.commit();
                long end = System.nanoTime();
                if (round >= WARM_UP_ROUNDS) {
                    whole.get(order.get(round)).add((end - start) / 1e6);
                    commit.get(order.get(round)).add((end - committing) / 1e6);
                }
            }
        }
        say("measured");
        return Map.of("whole", whole, "commit", commit);
    }

    /** Transactions of one message on one segment, by 64 producers at once. */
    private Map<String, Double> inFlight(int warmUpSeconds, int seconds) throws Exception {
        String topic = topics.create("in-flight", 1);
        AtomicLong done = new AtomicLong();
        AtomicBoolean ended = new AtomicBoolean();
        byte[] value = new byte[100];
        Workers workers = Workers.start(TRANSACTIONS_IN_FLIGHT, () -> {
            try (Producer<byte[]> producer = topics.unbatched(topic, Schema.bytes())) {
                while (!ended.get()) {
                    Transaction transaction = client.newTransaction();
                    producer.newMessage().key("key").value(value).transaction(transaction).send();
                    transaction.commit();
                    done.incrementAndGet();
                }
            }
        });
        Map<String, Double> result = window(done, warmUpSeconds, seconds);
        ended.set(true);
        workers.join();
        return result;
    }

    /** Messages of some bytes to one segment, batched, as many as the client takes. */
    private Map<String, Double> produce(int bytes, int warmUpSeconds, int seconds) throws Exception {
        String topic = topics.create("produce", 1);
        int permits = Math.min(SENDS_IN_FLIGHT, Math.max(64, BYTES_IN_FLIGHT / bytes));
        Semaphore room = new Semaphore(permits);
        AtomicLong done = new AtomicLong();
        AtomicBoolean ended = new AtomicBoolean();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        byte[] value = new byte[bytes];
        new Random(3).nextBytes(value);
        try (Producer<byte[]> producer = client.newProducer(Schema.bytes()).topic(topic).create()) {
            // The segment's own producer is there after the first answer.
            producer.newMessage().value(value).send();
            Thread sender = new Thread(() -> {
                while (!ended.get() && failure.get() == null) {
                    room.acquireUninterruptibly();
                    producer.async().newMessage().value(value).send().whenComplete((id, problem) -> {
                        if (problem != null) {
                            failure.compareAndSet(null, problem);
                        }
                        done.incrementAndGet();
                        room.release();
                    });
                }
            });
            sender.start();
            Map<String, Double> result = window(done, warmUpSeconds, seconds);
            ended.set(true);
            sender.join();
            room.acquireUninterruptibly(permits);
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
            return result;
        }
    }

    private static Map<String, Double> window(AtomicLong done, int warmUpSeconds, int seconds) throws Exception {
        Thread.sleep(warmUpSeconds * 1000L);
        say("measuring");
        long before = done.get();
        long start = System.nanoTime();
        Thread.sleep(seconds * 1000L);
        long after = done.get();
        double took = (System.nanoTime() - start) / 1e9;
        say("measured");
        return Map.of("done", (double) (after - before), "seconds", took);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
