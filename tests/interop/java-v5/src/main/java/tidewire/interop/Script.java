package tidewire.interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.Transaction;

/**
 * What was sent, in order, and therefore what a consumer must get: everything outside transactions and everything of
 * committed ones, once each, and for each key in the order of sending.
 */
final class Script {
    private record Line(String key, String value, Transaction transaction) {
    }

    private final List<Line> lines = new ArrayList<>();
    /** Counts on when lines are forgotten, so that no two messages of a scenario are the same. */
    private int nextNumber;

    /** Sends one message and waits for its receipt; {@code transaction} is null for a message outside transactions. */
    String send(Producer<String> producer, String key, Transaction transaction) throws PulsarClientException {
        String value = next(key, transaction);
        var message = producer.newMessage().key(key).value(value);
        if (transaction != null) {
            message.transaction(transaction);
        }
        message.send();
        return value;
    }

    /** Notes a message that the caller sends itself, and gives the value to send. */
    synchronized String next(String key, Transaction transaction) {
        String value = key + "/" + nextNumber++;
        lines.add(new Line(key, value, transaction));
        return value;
    }

    /** Takes out everything sent in this transaction: it was not committed, so nobody may ever see it. */
    synchronized void drop(Transaction transaction) {
        lines.removeIf(line -> line.transaction() == transaction);
    }

    /** Takes out messages that somebody has received and acknowledged already. */
    synchronized void forget() {
        lines.clear();
    }

    /** Takes out the first of them, which somebody has received and acknowledged already. */
    synchronized void forgetFirst(int count) {
        lines.subList(0, count).clear();
    }

    synchronized int size() {
        return lines.size();
    }

    synchronized void check(List<Message<String>> received) throws Failure {
        Map<String, List<String>> wanted = new LinkedHashMap<>();
        lines.forEach(line -> wanted.computeIfAbsent(line.key(), key -> new ArrayList<>()).add(line.value()));
        Map<String, List<String>> got = new LinkedHashMap<>();
        for (Message<String> message : received) {
            String key = message.key().orElseThrow(() -> new Failure("a message without its key: " + message.value()));
            got.computeIfAbsent(key, unseen -> new ArrayList<>()).add(message.value());
        }
        for (Map.Entry<String, List<String>> entry : got.entrySet()) {
            List<String> expected = wanted.getOrDefault(entry.getKey(), List.of());
            if (!expected.equals(entry.getValue())) {
                throw new Failure(difference(entry.getKey(), expected, entry.getValue()));
            }
        }
        for (Map.Entry<String, List<String>> entry : wanted.entrySet()) {
            Failure.unless(got.containsKey(entry.getKey()), "nothing came of key " + entry.getKey() + ", sent were "
                    + entry.getValue());
        }
    }

    synchronized List<String> values() {
        return lines.stream().map(Line::value).toList();
    }

    /** As {@link #check}, where no order is promised. */
    synchronized void checkContent(List<Message<String>> received) throws Failure {
        Receiving.sameInAnyOrder("received", Receiving.values(received), values());
    }

    private static String difference(String key, List<String> expected, List<String> got) {
        List<String> missing = new ArrayList<>(expected);
        missing.removeAll(got);
        List<String> tooMany = new ArrayList<>(got);
        expected.forEach(tooMany::remove);
        String order = missing.isEmpty() && tooMany.isEmpty() ? ", in the wrong order: " + got : "";
        return "key " + key + ": missing " + missing + ", not to be seen or seen twice " + tooMany + order;
    }
}
