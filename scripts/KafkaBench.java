import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Kafka side of {@code scripts/bench_process.py}, with Kafka's own client. Java runs it from this source.
 *
 * <p>Arguments: {@code BOOTSTRAP_SERVERS PHASE NUMBER...}. The program prints {@code measuring} and
 * {@code measured} around what counts, and one JSON object on its last line.
 */
public final class KafkaBench {
    private static final int[] PARTICIPANTS = {1, 4, 16, 64};
    private static final int TRANSACTIONS_IN_FLIGHT = 64;
    private static final int WARM_UP_ROUNDS = 600;
    private static final int SENDS_IN_FLIGHT = 5_000;
    private static final int BYTES_IN_FLIGHT = 16 * 1024 * 1024;

    private final String servers;
    private final String run = UUID.randomUUID().toString().substring(0, 8);

    private KafkaBench(String servers) {
        this.servers = servers;
    }

    public static void main(String[] arguments) throws Exception {
        KafkaBench bench = new KafkaBench(arguments[0]);
        int[] numbers = new int[arguments.length - 2];
        for (int place = 0; place < numbers.length; place++) {
            numbers[place] = Integer.parseInt(arguments[place + 2]);
        }
        String result = switch (arguments[1]) {
            case "whole" -> bench.whole(numbers[0]);
            case "in-flight" -> bench.inFlight(numbers[0], numbers[1]);
            case "produce" -> bench.produce(numbers[0], numbers[1], numbers[2]);
            case "fetch" -> bench.fetch(numbers[0], numbers[1]);
            default -> throw new IllegalArgumentException(arguments[1]);
        };
        System.out.println(result);
        // The in-flight producers' own threads are of no more use.
        System.exit(0);
    }

    /** By number of partitions written to: the times from begin to commit's return, and of the commit call alone. */
    private String whole(int rounds) throws Exception {
        String topic = create("whole", 64);
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
        List<Integer> partitions = new ArrayList<>();
        for (int partition = 0; partition < 64; partition++) {
            partitions.add(partition);
        }
        Random random = new Random(2);
        byte[] value = new byte[100];
        try (KafkaProducer<byte[], byte[]> producer = producer("whole", 0)) {
            producer.initTransactions();
            for (int round = 0; round < order.size(); round++) {
                if (round == warmUp.size()) {
                    say("measuring");
                }
                Collections.shuffle(partitions, random);
                long start = System.nanoTime();
                producer.beginTransaction();
                List<Future<?>> sent = new ArrayList<>();
                for (int partition : partitions.subList(0, order.get(round))) {
                    sent.add(producer.send(new ProducerRecord<>(topic, partition, null, value)));
                }
                for (Future<?> each : sent) {
                    each.get();
                }
                long committing = System.nanoTime();
                producer.commitTransaction();
                long end = System.nanoTime();
                if (round >= warmUp.size()) {
                    whole.get(order.get(round)).add((end - start) / 1e6);
                    commit.get(order.get(round)).add((end - committing) / 1e6);
                }
            }
        }
        say("measured");
        return "{\"whole\":" + json(whole) + ",\"commit\":" + json(commit) + "}";
    }

    /** Transactions of one message on one partition, by 64 transactional producers at once. */
    private String inFlight(int warmUpSeconds, int seconds) throws Exception {
        String topic = create("in-flight", 1);
        AtomicLong done = new AtomicLong();
        AtomicBoolean ended = new AtomicBoolean();
        AtomicReference<Exception> failure = new AtomicReference<>();
        byte[] value = new byte[100];
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < TRANSACTIONS_IN_FLIGHT; number++) {
            String name = "in-flight-" + number;
            Thread thread = new Thread(() -> {
                try (KafkaProducer<byte[], byte[]> producer = producer(name, 0)) {
                    producer.initTransactions();
                    while (!ended.get()) {
                        producer.beginTransaction();
                        producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
                        producer.commitTransaction();
                        done.incrementAndGet();
                    }
                } catch (Exception e) {
                    failure.compareAndSet(null, e);
                }
            });
            threads.add(thread);
            thread.start();
        }
        String result = window(done, warmUpSeconds, seconds);
        ended.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return result;
    }

    /** Messages of some bytes to one partition, batched, as many as the client takes. */
    private String produce(int bytes, int warmUpSeconds, int seconds) throws Exception {
        String topic = create("produce", 1);
        int permits = Math.min(SENDS_IN_FLIGHT, Math.max(64, BYTES_IN_FLIGHT / bytes));
        Semaphore room = new Semaphore(permits);
        AtomicLong done = new AtomicLong();
        AtomicBoolean ended = new AtomicBoolean();
        AtomicReference<Exception> failure = new AtomicReference<>();
        byte[] value = new byte[bytes];
        new Random(3).nextBytes(value);
        try (KafkaProducer<byte[], byte[]> producer = producer(null, 1)) {
            Thread sender = new Thread(() -> {
                while (!ended.get() && failure.get() == null) {
                    room.acquireUninterruptibly();
                    producer.send(new ProducerRecord<>(topic, 0, null, value), (metadata, problem) -> {
                        if (problem != null) {
                            failure.compareAndSet(null, problem);
                        }
                        done.incrementAndGet();
                        room.release();
                    });
                }
            });
            sender.start();
            String result = window(done, warmUpSeconds, seconds);
            ended.set(true);
            sender.join();
            room.acquireUninterruptibly(permits);
            if (failure.get() != null) {
                throw failure.get();
            }
            return result;
        }
    }

    /** Messages of some bytes, which this program has left in one partition before. */
    private String fetch(int bytes, int messages) throws Exception {
        String topic = create("fetch", 1);
        byte[] value = new byte[bytes];
        new Random(3).nextBytes(value);
        try (KafkaProducer<byte[], byte[]> producer = producer(null, 1)) {
            for (int message = 0; message < messages; message++) {
                producer.send(new ProducerRecord<>(topic, 0, null, value));
            }
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", "fetch-" + run);
        settings.put("enable.auto.commit", "false");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> assigned = List.of(new TopicPartition(topic, 0));
            consumer.assign(assigned);
            consumer.seekToBeginning(assigned);
            consumer.poll(Duration.ofSeconds(30));
            consumer.seekToBeginning(assigned);
            say("measuring");
            long start = System.nanoTime();
            long read = 0;
            while (read < messages) {
                read += consumer.poll(Duration.ofSeconds(30)).count();
            }
            double took = (System.nanoTime() - start) / 1e9;
            say("measured");
            return "{\"done\":" + read + ",\"seconds\":" + took + "}";
        }
    }

    private static String window(AtomicLong done, int warmUpSeconds, int seconds) throws Exception {
        Thread.sleep(warmUpSeconds * 1000L);
        say("measuring");
        long before = done.get();
        long start = System.nanoTime();
        Thread.sleep(seconds * 1000L);
        long after = done.get();
        double took = (System.nanoTime() - start) / 1e9;
        say("measured");
        return "{\"done\":" + (after - before) + ",\"seconds\":" + took + "}";
    }

    private String create(String phase, int partitions) throws Exception {
        String name = phase + "-" + run;
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all().get();
        }
        return name;
    }

    private KafkaProducer<byte[], byte[]> producer(String transactional, int lingerMillis) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("acks", "all");
        settings.put("linger.ms", Integer.toString(lingerMillis));
        // As much as a batch of Pulsar's client holds.
        settings.put("batch.size", Integer.toString(128 * 1024));
        settings.put("buffer.memory", Integer.toString(2 * BYTES_IN_FLIGHT));
        if (transactional != null) {
            settings.put("transactional.id", transactional + "-" + run);
        }
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String json(Map<Integer, List<Double>> times) {
        List<String> entries = new ArrayList<>();
        times.forEach((participants, taken) -> entries.add("\"" + participants + "\":" + taken));
        return "{" + String.join(",", entries) + "}";
    }
}
