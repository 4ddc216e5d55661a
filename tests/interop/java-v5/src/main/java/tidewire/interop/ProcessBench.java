package tidewire.interop;

import com.google.gson.Gson;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * The Pulsar side of {@code scripts/bench_process.py}; {@code scripts/KafkaBench.java} has the same phases.
 *
 * <p>Arguments: {@code SERVICE_URL HTTP_URL PHASE NUMBER...}. The program prints {@code measuring} and
 * {@code measured} around what counts, and one JSON object on its last line.
 */
public final class ProcessBench {
    private static final Duration TIMEOUT = Duration.ofMinutes(10);
    private static final int[] PARTICIPANTS = {1, 4, 16, 64};
    private static final int TRANSACTIONS_IN_FLIGHT = 64;
    private static final int WARM_UP_ROUNDS = 600;
    private static final int SENDS_IN_FLIGHT = 5_000;
    private static final int BYTES_IN_FLIGHT = 16 * 1024 * 1024;

    private final PulsarClient client;
    private final Admin admin;
    private final String run = UUID.randomUUID().toString().substring(0, 8);

    private ProcessBench(PulsarClient client, Admin admin) {
        this.client = client;
        this.admin = admin;
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = Stage.connect(arguments[0], TIMEOUT)) {
            ProcessBench bench = new ProcessBench(client, new Admin(arguments[1]));
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
        String topic = create("whole", 64);
        List<String> all = Keys.overAll(admin.segments(local(topic)));
        List<String> keys = new ArrayList<>();
        for (int place = 0; place < all.size(); place += 2) {
            keys.add(all.get(place));
        }
        Map<Integer, List<Double>> whole = new TreeMap<>();
        Map<Integer, List<Double>> commit = new TreeMap<>();
        List<Integer> order = new ArrayList<>();
        for (int participants : PARTICIPANTS) {
            whole.put(participants, new ArrayList<>());
            commit.put(participants, new ArrayList<>());
            order.addAll(Collections.nCopies(rounds, participants));
        }
        Collections.shuffle(order, new Random(1));
        List<Integer> warmUp = new ArrayList<>();
        for (int round = 0; round < WARM_UP_ROUNDS; round++) {
            warmUp.add(PARTICIPANTS[round % PARTICIPANTS.length]);
        }
        order.addAll(0, warmUp);
        Random random = new Random(2);
        byte[] value = new byte[100];
        try (Producer<byte[]> producer = unbatched(topic)) {
            for (int round = 0; round < order.size(); round++) {
                if (round == warmUp.size()) {
                    say("measuring");
                }
                Collections.shuffle(keys, random);
                long start = System.nanoTime();
                Transaction transaction = client.newTransaction();
                List<CompletableFuture<?>> sent = new ArrayList<>();
                for (String key : keys.subList(0, order.get(round))) {
                    sent.add(producer.async().newMessage().key(key).value(value).transaction(transaction).send());
                }
                CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).join();
                long committing = System.nanoTime();
                transaction.commit();
                long end = System.nanoTime();
                if (round >= warmUp.size()) {
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
        String topic = create("in-flight", 1);
        AtomicLong done = new AtomicLong();
        AtomicBoolean ended = new AtomicBoolean();
        AtomicReference<Exception> failure = new AtomicReference<>();
        byte[] value = new byte[100];
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < TRANSACTIONS_IN_FLIGHT; number++) {
            Thread thread = new Thread(() -> {
                try (Producer<byte[]> producer = unbatched(topic)) {
                    while (!ended.get()) {
                        Transaction transaction = client.newTransaction();
                        producer.newMessage().key("key").value(value).transaction(transaction).send();
                        transaction.commit();
                        done.incrementAndGet();
                    }
                } catch (Exception e) {
                    failure.compareAndSet(null, e);
                }
            });
            threads.add(thread);
            thread.start();
        }
        Map<String, Double> result = window(done, warmUpSeconds, seconds);
        ended.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return result;
    }

    /** Messages of some bytes to one segment, batched, as many as the client takes. */
    private Map<String, Double> produce(int bytes, int warmUpSeconds, int seconds) throws Exception {
        String topic = create("produce", 1);
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

    private String create(String phase, int segments) throws Exception {
        String name = phase + "-" + run;
        admin.create(name, segments).expect(204, "PUT " + name);
        return "topic://public/default/" + name;
    }

    private static String local(String topic) {
        return topic.substring(topic.lastIndexOf('/') + 1);
    }

    /** Batching would add its own wait to a transaction's time. */
    private Producer<byte[]> unbatched(String topic) throws Exception {
        return client.newProducer(Schema.bytes()).topic(topic).batchingPolicy(BatchingPolicy.ofDisabled()).create();
    }
}
