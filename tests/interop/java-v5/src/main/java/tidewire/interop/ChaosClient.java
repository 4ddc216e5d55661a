package tidewire.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Sends in transactions and consumes, on one topic of a cluster that has bad days, and says each step on a line.
 *
 * <p>Arguments: {@code SERVICE_URL TOPIC SEED WORKERS}. The other side is {@code tests/support/chaos/java.py}, which
 * judges. A line comes before what it announces, such as {@code commit 7}, or behind what has been answered, such as
 * {@code committed 7}. After {@code stop} on standard input the program sends no more, and says {@code stopped}. It
 * consumes until standard input ends. At each {@code reopen} before that, it opens its consumer again, because a client
 * that lost a cumulative acknowledgement with a connection never acknowledges again (apache/pulsar#7683).
 */
public final class ChaosClient {
    private static final Duration OPERATION_MAX = Duration.ofSeconds(120);
    private static final Duration TRANSACTION_TIMEOUT = Duration.ofSeconds(300);
    private static final Duration LOOK = Duration.ofSeconds(1);
    private static final int KEYS = 4;
    private static final int MESSAGES_MAX = 5;
    private static final int PAUSE_MAX_MS = 300;
    private static final double ABORTED = 0.2;

    private final PulsarClient client;
    private final String topic;
    private final Producer<String> producer;
    private final AtomicBoolean stopping = new AtomicBoolean();
    private final AtomicBoolean reopening = new AtomicBoolean();
    private int begun;

    private ChaosClient(PulsarClient client, String topic, Producer<String> producer) {
        this.client = client;
        this.topic = topic;
        this.producer = producer;
    }

    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder()
                .serviceUrl(arguments[0])
                .operationTimeout(OPERATION_MAX)
                .transactionPolicy(TransactionPolicy.builder().timeout(TRANSACTION_TIMEOUT).build())
                .build();
        Producer<String> producer = client.newProducer(Schema.string())
                .topic(arguments[1])
                .sendTimeout(OPERATION_MAX)
                .create();
        new ChaosClient(client, arguments[1], producer)
                .run(Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
        // What was to be told was told. Closing the client in an orderly way may take its time-outs.
        Runtime.getRuntime().halt(0);
    }

    private void run(int seed, int workers) throws Exception {
        StreamConsumer<String> consumer = subscribe();
        Thread consuming = new Thread(() -> consume(consumer));
        consuming.setDaemon(true);
        consuming.start();
        AtomicInteger numbers = new AtomicInteger();
        Workers sending = Workers.start(workers, () -> {
            int number = numbers.getAndIncrement();
            send(number, new Random(seed * 1000L + number));
        });
        say("started");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        input.readLine();
        stopping.set(true);
        sending.join();
        say("stopped");
        while (input.readLine() != null) {
            reopening.set(true);
        }
    }

    private StreamConsumer<String> subscribe() throws PulsarClientException {
        return client.newStreamConsumer(Schema.string())
                .topic(topic)
                .subscriptionName("java")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe();
    }

    private void send(int worker, Random random) throws InterruptedException {
        while (!stopping.get()) {
            try {
                say("beginning " + worker);
                Transaction transaction = client.newTransaction();
                transact(begin(worker), transaction, worker, random);
            } catch (PulsarClientException e) {
                say("not-begun " + worker + " " + oneLine(e));
            }
            Thread.sleep(random.nextInt(PAUSE_MAX_MS));
        }
    }

    private void transact(int number, Transaction transaction, int worker, Random random) {
        boolean failed = false;
        int messages = 1 + random.nextInt(MESSAGES_MAX);
        for (int message = 0; message < messages && !failed; message++) {
            String key = "java-" + worker + "-" + random.nextInt(KEYS);
            say("send " + number + " " + key);
            try {
                producer.newMessage().key(key).value(number + "." + message + ".").transaction(transaction).send();
                say("sent " + number);
            } catch (PulsarClientException e) {
                failed = true;
                say("not-sent " + number + " " + oneLine(e));
            }
        }
        boolean commits = !failed && random.nextDouble() >= ABORTED;
        say((commits ? "commit " : "abort ") + number);
        try {
            if (commits) {
                transaction.commit();
            } else {
                transaction.abort();
            }
            say((commits ? "committed " : "aborted ") + number);
        } catch (PulsarClientException e) {
            say("not-ended " + number + " " + oneLine(e));
        }
    }

    private void consume(StreamConsumer<String> first) {
        StreamConsumer<String> consumer = first;
        while (true) {
            try {
                if (reopening.getAndSet(false)) {
                    consumer.close();
                    consumer = subscribe();
                    say("reopened");
                }
                Message<String> message = consumer.receive(LOOK);
                if (message != null) {
                    say("got " + message.key().orElse("") + " " + message.value());
                    consumer.acknowledgeCumulative(message.id());
                }
            } catch (PulsarClientException e) {
                say("not-received " + oneLine(e));
            }
        }
    }

    /** The number of a new transaction is that of its line. */
    private synchronized int begin(int worker) {
        say("begun " + worker + " " + begun);
        return begun++;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String oneLine(Exception problem) {
        return problem.toString().replaceAll("\\s+", " ");
    }
}
