package tidewire.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/** Stories of {@link RegularAdminScenarios} in which Pulsar's own client for administrators looks at messages. */
final class PeekScenarios {
    private static final int LARGE_BYTES = 3_000_000;

    private final Topics topics;
    private final PulsarClient client;
    private final String topic;

    PeekScenarios(Topics topics, PulsarClient client, String topic) {
        this.topics = topics;
        this.client = client;
        this.topic = topic;
    }

    /** Single messages and a compressed batch; what is acknowledged is passed over, and nothing moves. */
    void peekMessages() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "a/b", MessageId.earliest);
        List<MessageId> sent = new ArrayList<>();
        long before = System.currentTimeMillis();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int i = 0; i < 2; i++) {
                sent.add(producer.newMessage().key("k" + i).property("größe", "€" + i).property("other", "x")
                        .eventTime(1_000 + i).value(bytes("v" + i)).send());
            }
        }
        try (Producer<byte[]> producer = client.newProducer().topic(topic).compressionType(CompressionType.LZ4)
                .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
            for (int i = 2; i < 5; i++) {
                producer.newMessage().property("n", Integer.toString(i)).value(bytes("v" + i)).sendAsync();
            }
            producer.flush();
        }
        List<Message<byte[]>> peeked = topics.peekMessages(topic, "a/b", 10);
        Expect.equal("the values", texts(peeked), List.of("v0", "v1", "v2", "v3", "v4"));
        Message<byte[]> first = peeked.get(0);
        Expect.equal("the key", first.getKey(), "k0");
        Expect.equal("the properties", first.getProperties(), Map.of("größe", "€0", "other", "x"));
        Expect.equal("the event time", first.getEventTime(), 1_000L);
        Failure.unless(Math.abs(first.getPublishTime() - before) < 60_000, "the publish time is " + first.getPublishTime());
        MessageIdAdv id = (MessageIdAdv) first.getMessageId();
        MessageIdAdv wanted = (MessageIdAdv) sent.get(0);
        Expect.equal("the ledger", id.getLedgerId(), wanted.getLedgerId());
        Expect.equal("the entry", id.getEntryId(), wanted.getEntryId());
        // The client gives all messages of a batch one map, in which the last one's properties remain.
        Expect.equal("a property of the batch", peeked.get(3).getProperty("n"), "4");
        Expect.equal("the backlog", backlog(), 3L);
        topics.skipMessages(topic, "a/b", 1);
        Expect.equal("what is left", texts(topics.peekMessages(topic, "a/b", 2)), List.of("v1", "v2"));
        Expect.equal("the backlog then", backlog(), 2L);
        topics.skipAllMessages(topic, "a/b");
        // The client takes a 404 for the end.
        Expect.equal("behind the end", topics.peekMessages(topic, "a/b", 1), List.of());
    }

    /** A message of megabytes, one by its id, and from the ends of the topic. */
    void singleMessages() throws Exception {
        topics.createNonPartitionedTopic(topic);
        refused(404, () -> topics.examineMessage(topic, "latest", 1));
        MessageIdAdv large;
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            producer.send(bytes("first"));
            byte[] value = new byte[LARGE_BYTES];
            value[LARGE_BYTES - 1] = 7;
            large = (MessageIdAdv) producer.newMessage().property("long", "x".repeat(200_000)).value(value).send();
            producer.send(bytes("last"));
        }
        Message<byte[]> found = topics.getMessagesById(topic, large.getLedgerId(), large.getEntryId()).get(0);
        Expect.equal("the size", found.getData().length, LARGE_BYTES);
        Expect.equal("the last byte", found.getData()[LARGE_BYTES - 1], (byte) 7);
        Expect.equal("a property that fits no header", found.getProperty("long"), null);
        Expect.equal("the first", text(topics.examineMessage(topic, "earliest", 1)), "first");
        Expect.equal("the last", text(topics.examineMessage(topic, "latest", 1)), "last");
        Expect.equal("the last but two", text(topics.examineMessage(topic, "latest", 3)), "first");
        refused(404, () -> topics.examineMessage(topic, "earliest", 4));
        refused(404, () -> topics.getMessagesById(topic, large.getLedgerId(), large.getEntryId() + 2));
        MessageIdAdv early = (MessageIdAdv) topics.getMessageIdByTimestamp(topic, 5);
        Expect.equal("the entry of an early time", early.getEntryId(), 0L);
        MessageIdAdv indexed = (MessageIdAdv) topics.getMessageIdByIndex(topic, 2);
        Expect.equal("the entry of an index", indexed.getEntryId(), 2L);
        topics.createPartitionedTopic(topic + "-parts", 2);
        refused(405, () -> topics.examineMessage(topic + "-parts", "latest", 1));
    }

    private long backlog() throws Exception {
        return topics.getStats(topic).getSubscriptions().get("a/b").getMsgBacklog();
    }

    private static void refused(int status, Expect.Step call) throws Exception {
        try {
            call.run();
        } catch (PulsarAdminException e) {
            Expect.equal("the status", e.getStatusCode(), status);
            return;
        }
        throw new Failure("there was no refusal");
    }

    private static List<String> texts(List<Message<byte[]>> messages) {
        return messages.stream().map(PeekScenarios::text).toList();
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
