package tidewire.interop;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.PulsarClientException;

/** Taking messages from any kind of consumer, without acknowledging them. */
final class Receiving {
    /** {@code receive} of a consumer: the next message, or null when none came in that time. */
    @FunctionalInterface
    interface Source<T> {
        Message<T> next(Duration wait) throws PulsarClientException;
    }

    private Receiving() {
    }

    /** The next {@code count} messages. */
    static <T> List<Message<T>> first(Source<T> source, int count) throws PulsarClientException, Failure {
        List<Message<T>> received = new ArrayList<>();
        Instant deadline = Instant.now().plus(Limits.DELIVERY_MAX);
        while (received.size() < count) {
            Duration left = Duration.between(Instant.now(), deadline);
            Message<T> message = left.isNegative() ? null : source.next(left);
            Failure.unless(message != null, "only " + received.size() + " of " + count + " messages came: "
                    + shortened(received));
            received.add(message);
        }
        return received;
    }

    static <T> Message<T> one(Source<T> source) throws PulsarClientException, Failure {
        return first(source, 1).get(0);
    }

    /** The next {@code count} messages, and then nothing. */
    static <T> List<Message<T>> exactly(Source<T> source, int count) throws PulsarClientException, Failure {
        List<Message<T>> received = first(source, count);
        nothing(source, count + " messages were to come");
        return received;
    }

    static <T> void nothing(Source<T> source, String why) throws PulsarClientException, Failure {
        Message<T> message = source.next(Limits.QUIET);
        Failure.unless(message == null, why + ", but received " + (message == null ? "" : message.value()));
    }

    static <T> List<T> values(Collection<Message<T>> messages) {
        return messages.stream().map(Message::value).toList();
    }

    /** Each of the values as often as wanted, in any order. */
    static <T> void sameInAnyOrder(String what, Collection<T> got, Collection<T> wanted) throws Failure {
        Failure.unless(counted(got).equals(counted(wanted)), what + ": " + got + " instead of " + wanted);
    }

    private static <T> Map<T, Integer> counted(Collection<T> values) {
        Map<T, Integer> counts = new HashMap<>();
        values.forEach(value -> counts.merge(value, 1, Integer::sum));
        return counts;
    }

    private static <T> String shortened(List<Message<T>> messages) {
        String text = values(messages).toString();
        return text.length() <= 200 ? text : text.substring(0, 200) + "...";
    }
}
