package tidewire.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** What the benchmark programs share: topics of their own, keys and producers for them, and rounds over segments. */
final class BenchTopics {
    /** Segments that one transaction writes to. */
    private static final int[] PARTICIPANTS = {1, 4, 16, 64};

    private final PulsarClient client;
    private final Admin admin;
    private final String run = UUID.randomUUID().toString().substring(0, 8);

    BenchTopics(PulsarClient client, Admin admin) {
        this.client = client;
        this.admin = admin;
    }

    /** A topic for one phase of this run. */
    String create(String phase, int segments) throws Exception {
        return createNamed(phase + "-" + run, segments);
    }

    String createNamed(String name, int segments) throws Exception {
        admin.create(name, segments).expect(204, "PUT " + name);
        return "topic://public/default/" + name;
    }

    /** One key for each segment. */
    List<String> keys(String topic) throws Exception {
        List<String> all = Keys.overAll(admin.segments(topic.substring(topic.lastIndexOf('/') + 1)));
        List<String> keys = new ArrayList<>();
        for (int place = 0; place < all.size(); place += 2) {
            keys.add(all.get(place));
        }
        return keys;
    }

    /** Batching would add its own wait to a message's time. */
    <T> Producer<T> unbatched(String topic, Schema<T> schema) throws Exception {
        return client.newProducer(schema).topic(topic).batchingPolicy(BatchingPolicy.ofDisabled()).create();
    }

    /** The numbers of segments to write to, each this many times, in an order that is the same for every broker. */
    static List<Integer> shuffled(int rounds) {
        List<Integer> order = new ArrayList<>();
        for (int participants : PARTICIPANTS) {
            order.addAll(Collections.nCopies(rounds, participants));
        }
        Collections.shuffle(order, new Random(1));
        return order;
    }

    /** The same numbers in turn, for as many rounds. */
    static List<Integer> inTurn(int rounds) {
        List<Integer> order = new ArrayList<>();
        for (int round = 0; round < rounds; round++) {
            order.add(PARTICIPANTS[round % PARTICIPANTS.length]);
        }
        return order;
    }

    /** No times yet, by the number of segments written to. */
    static Map<Integer, List<Double>> byParticipants() {
        Map<Integer, List<Double>> times = new TreeMap<>();
        for (int participants : PARTICIPANTS) {
            times.put(participants, new ArrayList<>());
        }
        return times;
    }

    /** Sends a message with each key at once, and returns when all are stored. */
    static <T> void sendAll(Producer<T> producer, Transaction transaction, List<String> keys, T value) {
        List<CompletableFuture<?>> sent = new ArrayList<>();
        for (String key : keys) {
            sent.add(producer.async().newMessage().key(key).value(value).transaction(transaction).send());
        }
        CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).join();
    }
}
