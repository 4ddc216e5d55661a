package tidewire.interop;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.ProducerBuilder;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionType;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** What a producer puts into a message is what a consumer takes out of it, in whatever way it travelled. */
final class MessageScenarios {
    private static final int MEGABYTE = 1024 * 1024;
    private static final int CHUNK_BYTES = 4 * MEGABYTE;
    /** Above the 5 MiB that a message may have: three chunks. */
    private static final int CHUNKED_BYTES = 12 * MEGABYTE - 1;

    private MessageScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("message_keeps_all_its_parts", MessageScenarios::keepsAllItsParts);
        scenarios.put("messages_without_key_are_spread", MessageScenarios::withoutKey);
        scenarios.put("empty_message", MessageScenarios::emptyMessage);
        scenarios.put("sequence_ids_and_producer_name", MessageScenarios::sequenceIds);
        scenarios.put("sends_without_waiting_keep_their_order", stage -> asynchronous(stage, true));
        scenarios.put("unbatched_sends_keep_their_order", stage -> asynchronous(stage, false));
        scenarios.put("parts_of_batched_messages", MessageScenarios::partsOfBatched);
        scenarios.put("flush_waits_for_receipts", MessageScenarios::flush);
        scenarios.put("two_producers_on_one_topic", MessageScenarios::twoProducers);
        for (CompressionType type : CompressionType.values()) {
            scenarios.put("compressed_with_" + type.name().toLowerCase(), stage -> compressed(stage, type));
        }
        scenarios.put("message_of_one_megabyte", MessageScenarios::oneMegabyte);
        scenarios.put("message_above_the_limit_is_refused", MessageScenarios::aboveLimit);
        scenarios.put("chunked_message", stage -> chunked(stage, 1));
        scenarios.put("chunked_messages_of_two_producers", stage -> chunked(stage, 2));
        scenarios.put("chunked_messages_of_a_shared_queue", stage -> chunkedAndShared(stage, false));
        scenarios.put("chunked_messages_of_a_consumer_that_leaves", stage -> chunkedAndShared(stage, true));
        scenarios.put("receive_without_blocking", MessageScenarios::receiveWithoutBlocking);
        scenarios.put("receive_several_at_once", MessageScenarios::receiveSeveral);
    }

    private static void keepsAllItsParts(Stage stage) throws Exception {
        stage.createTopic(4);
        Instant eventTime = Instant.ofEpochMilli(1_234_567_890_123L);
        Map<String, String> properties = Map.of("colour", "blue", "empty", "", "long", "x".repeat(5_000), "ü", "ж");
        Instant before = Instant.now().minusSeconds(1);
        stage.producer().newMessage().key("clé").value("värde").properties(properties).eventTime(eventTime).send();
        for (Receiving.Source<String> source : List.<Receiving.Source<String>>of(
                stage.stream("stream")::receive, stage.queue("queue")::receive)) {
            Message<String> message = Receiving.exactly(source, 1).get(0);
            Expect.equal("value", message.value(), "värde");
            Expect.equal("bytes", new String(message.data(), StandardCharsets.UTF_8), "värde");
            Expect.equal("key", message.key().orElse(null), "clé");
            Expect.equal("properties", message.properties(), properties);
            Expect.equal("event time", message.eventTime().orElse(null), eventTime);
            Expect.equal("redelivery count", message.redeliveryCount(), 0);
            Failure.unless(message.publishTime().isAfter(before) && message.publishTime().isBefore(Instant.now()
                    .plusSeconds(1)), "publish time " + message.publishTime());
            MessageId again = MessageId.fromByteArray(message.id().toByteArray());
            Expect.equal("id from its own bytes", again.compareTo(message.id()), 0);
        }
    }

    /** Every segment gets some. */
    private static void withoutKey(Stage stage) throws Exception {
        stage.createTopic(4);
        Producer<String> producer = stage.producer();
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 16; number++) {
            sent.add("message " + number);
            producer.newMessage().value(sent.get(number)).send();
        }
        List<Message<String>> received = Receiving.exactly(stage.stream("sub")::receive, sent.size());
        Receiving.sameInAnyOrder("received", Receiving.values(received), sent);
        Set<String> segments = new HashSet<>();
        for (Message<String> message : received) {
            Failure.unless(message.key().isEmpty(), "a key nobody gave: " + message.key());
            // The client has no call for a message's segment; its id says it in the text after the last colon or comma.
            segments.add(segmentOf(message.id()));
        }
        Expect.equal("number of segments with messages", segments.size(), 4);
    }

    private static String segmentOf(MessageId id) throws ReflectiveOperationException {
        var method = id.getClass().getDeclaredMethod("segmentId");
        method.setAccessible(true);
        return String.valueOf(method.invoke(id));
    }

    private static void emptyMessage(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<byte[]> producer = stage.producer(Schema.bytes(), stage.topic);
        producer.newMessage().key("k").value(new byte[0]).send();
        producer.newMessage().key("k").value(new byte[] {0}).send();
        List<Message<byte[]>> received =
                Receiving.exactly(stage.stream(Schema.bytes(), stage.topic, "sub")::receive, 2);
        Expect.equal("size of the first", received.get(0).data().length, 0);
        Expect.equal("size of the second", received.get(1).data().length, 1);
    }

    /** One segment: there the numbers rise by one, and the producer knows its last. */
    private static void sequenceIds(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer(stage.client.newProducer(Schema.string()).producerName("writer"));
        for (int number = 0; number < 5; number++) {
            producer.newMessage().key("k").value("message " + number).send();
        }
        Expect.equal("the producer's last sequence id", producer.lastSequenceId(), 4L);
        long next = 0;
        for (Message<String> message : Receiving.exactly(stage.stream("sub")::receive, 5)) {
            Expect.equal("sequence id", message.sequenceId(), next++);
            String name = message.producerName().orElse("");
            Failure.unless(name.startsWith("writer"), "producer name " + name);
        }
    }

    private static void asynchronous(Stage stage, boolean batching) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        StreamConsumer<String> consumer = stage.stream("attached");
        Producer<String> producer = stage.producer(stage.client.newProducer(Schema.string()).batchingPolicy(
                BatchingPolicy.builder().enabled(batching).maxMessages(50).build()));
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int round = 0; round < 50; round++) {
            for (String key : keys) {
                receipts.add(producer.async().newMessage().key(key).value(script.next(key, null)).send());
            }
        }
        Expect.allDone(receipts);
        script.check(Stage.receive(consumer, script.size()));
    }

    /** In a batch each message has metadata of its own. */
    private static void partsOfBatched(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer(inOneBatch(stage.client.newProducer(Schema.string()), 10));
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            receipts.add(producer.async().newMessage().key("key " + number).value("value " + number)
                    .property("number", String.valueOf(number)).eventTime(Instant.ofEpochMilli(1_000 + number)).send());
        }
        Expect.allDone(receipts);
        int number = 0;
        for (Message<String> message : Receiving.exactly(stage.stream("sub")::receive, 10)) {
            Expect.equal("value", message.value(), "value " + number);
            Expect.equal("key", message.key().orElse(null), "key " + number);
            Expect.equal("properties", message.properties(), Map.of("number", String.valueOf(number)));
            Expect.equal("event time", message.eventTime().orElse(null), Instant.ofEpochMilli(1_000 + number));
            number++;
        }
    }

    /** A producer whose sends go out as one batch as soon as there are {@code count} of them. */
    static ProducerBuilder<String> inOneBatch(ProducerBuilder<String> builder, int count) {
        return builder.batchingPolicy(BatchingPolicy.builder()
                .enabled(true).maxMessages(count).maxPublishDelay(Duration.ofMinutes(1)).build());
    }

    /** After it every earlier send has its receipt. */
    private static void flush(Stage stage) throws Exception {
        stage.createTopic(2);
        Producer<String> producer = stage.producer();
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int number = 0; number < 100; number++) {
            receipts.add(producer.async().newMessage().key("key " + number).value("value " + number).send());
        }
        Expect.done(producer.async().flush());
        // The client completes these on other threads, so flush may return a moment before the last of them.
        Expect.allDone(receipts);
        Receiving.exactly(stage.stream("sub")::receive, 100);
    }

    private static void twoProducers(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(2));
        Script script = new Script();
        Producer<String> one = stage.producer();
        Producer<String> other = stage.producer();
        for (int round = 0; round < 5; round++) {
            SplitScenarios.sendRound(script, one, keys, null);
            SplitScenarios.sendRound(script, other, keys, null);
        }
        one.close();
        SplitScenarios.sendRound(script, other, keys, null);
        script.check(Stage.receive(stage.stream("sub"), script.size()));
    }

    /** Single messages and a batch of them. */
    private static void compressed(Stage stage, CompressionType type) throws Exception {
        stage.createTopic(1);
        Producer<String> producer = stage.producer(inOneBatch(stage.client.newProducer(Schema.string()), 20)
                .compressionPolicy(CompressionPolicy.of(type)));
        List<String> sent = IntStream.range(0, 20)
                .mapToObj(number -> "easily compressed ".repeat(200) + number).toList();
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        sent.forEach(value -> receipts.add(producer.async().newMessage().key("k").value(value).send()));
        Expect.allDone(receipts);
        // That producer would wait for more.
        Producer<String> other = stage.producer(
                stage.client.newProducer(Schema.string()).compressionPolicy(CompressionPolicy.of(type)));
        other.newMessage().key("k").value("single " + "x".repeat(10_000)).send();
        List<String> wanted = new ArrayList<>(sent);
        wanted.add("single " + "x".repeat(10_000));
        Expect.equal("received", Receiving.values(Receiving.exactly(stage.stream("sub")::receive, 21)), wanted);
    }

    /** Bytes that no compression makes smaller. */
    private static byte[] noise(int size, int seed) {
        byte[] bytes = new byte[size];
        new Random(seed).nextBytes(bytes);
        return bytes;
    }

    private static void oneMegabyte(Stage stage) throws Exception {
        stage.createTopic(1);
        QueueConsumer<byte[]> consumer = stage.queue(Schema.bytes(), stage.topic, "sub");
        Producer<byte[]> producer = stage.producer(Schema.bytes(), stage.topic);
        for (int number = 0; number < 10; number++) {
            producer.newMessage().key("k").value(noise(MEGABYTE, number)).send();
        }
        List<Message<byte[]>> received = Receiving.exactly(consumer::receive, 10);
        for (int number = 0; number < 10; number++) {
            Failure.unless(Arrays.equals(received.get(number).data(), noise(MEGABYTE, number)),
                    "message " + number + " came changed");
        }
    }

    /** It does the producer no harm. */
    private static void aboveLimit(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<byte[]> producer = stage.producer(Schema.bytes(), stage.topic);
        producer.newMessage().key("k").value(new byte[] {1}).send();
        Expect.refused("a message of 6 MiB", () -> producer.newMessage().key("k").value(noise(6 * MEGABYTE, 1)).send());
        producer.newMessage().key("k").value(new byte[] {2}).send();
        Receiving.exactly(stage.queue(Schema.bytes(), stage.topic, "sub")::receive, 2);
    }

    /** Chunks of several producers lie between each other, and each consumer puts its own together again. */
    private static void chunked(Stage stage, int producers) throws Exception {
        stage.createTopic(1);
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            Producer<byte[]> producer = stage.keep(stage.client.newProducer(Schema.bytes())
                    .topic(stage.topic)
                    .sendTimeout(Limits.OPERATION_MAX)
                    .batchingPolicy(BatchingPolicy.ofDisabled())
                    .chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(CHUNK_BYTES).build())
                    .create());
            receipts.add(producer.async().newMessage().key("k").value(noise(CHUNKED_BYTES, number)).send());
            receipts.add(producer.async().newMessage().key("k").value(new byte[] {(byte) number}).send());
        }
        Expect.allDone(receipts);
        QueueConsumer<byte[]> consumer = stage.queue(Schema.bytes(), stage.topic, "sub");
        Set<Integer> whole = new HashSet<>();
        for (Message<byte[]> message : Receiving.exactly(consumer::receive, 2 * producers)) {
            consumer.acknowledge(message.id());
            for (int number = 0; number < producers; number++) {
                if (Arrays.equals(message.data(), noise(CHUNKED_BYTES, number))) {
                    whole.add(number);
                }
            }
        }
        Expect.equal("large messages that came whole", whole.size(), producers);
        consumer.close();
        Receiving.nothing(stage.queue(Schema.bytes(), stage.topic, "sub")::receive, "all chunks were acknowledged");
    }

    /** All chunks of a message come to one of the consumers; when that one leaves, to another. */
    private static void chunkedAndShared(Stage stage, boolean leaves) throws Exception {
        int count = 20;
        stage.createTopic(1);
        QueueConsumer<byte[]> leaving = leaves ? stage.queue(Schema.bytes(), stage.topic, "sub") : null;
        List<QueueConsumer<byte[]>> staying = List.of(
                stage.queue(Schema.bytes(), stage.topic, "sub"), stage.queue(Schema.bytes(), stage.topic, "sub"));
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            producers.add(stage.keep(stage.client.newProducer(Schema.bytes())
                    .topic(stage.topic)
                    .sendTimeout(Limits.OPERATION_MAX)
                    .batchingPolicy(BatchingPolicy.ofDisabled())
                    .chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(MEGABYTE / 16).build())
                    .create()));
        }
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Producer<byte[]> producer = producers.get(number % producers.size());
            receipts.add(producer.async().newMessage()
                    .key(String.valueOf(number)).value(noise(MEGABYTE, number)).send());
        }
        if (leaves) {
            Receiving.first(leaving::receive, 2);
            leaving.close();
        }
        Expect.allDone(receipts);
        List<String> came = new ArrayList<>();
        Set<QueueConsumer<byte[]>> receivers = new HashSet<>();
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (came.size() < count && System.nanoTime() < deadline) {
            for (QueueConsumer<byte[]> consumer : staying) {
                Message<byte[]> message = consumer.receive(Limits.TURN);
                if (message != null) {
                    String number = message.key().orElseThrow();
                    Failure.unless(Arrays.equals(message.data(), noise(MEGABYTE, Integer.parseInt(number))),
                            "message " + number + " came changed");
                    consumer.acknowledge(message.id());
                    came.add(number);
                    receivers.add(consumer);
                }
            }
        }
        Receiving.sameInAnyOrder("messages that came",
                came, IntStream.range(0, count).mapToObj(String::valueOf).toList());
        Expect.equal("consumers that got some", receivers.size(), staying.size());
        for (QueueConsumer<byte[]> consumer : staying) {
            consumer.close();
        }
        Receiving.nothing(stage.queue(Schema.bytes(), stage.topic, "sub")::receive, "all chunks were acknowledged");
    }

    private static void receiveWithoutBlocking(Stage stage) throws Exception {
        stage.createTopic(2);
        StreamConsumer<String> stream = stage.stream("stream");
        QueueConsumer<String> queue = stage.queue("queue");
        CompletableFuture<Message<String>> fromStream = stream.async().receive();
        CompletableFuture<Message<String>> fromQueue = queue.async().receive();
        Failure.unless(!fromStream.isDone() && !fromQueue.isDone(), "a message came before one was sent");
        stage.producer().newMessage().key("k").value("hello").send();
        Message<String> streamed = Expect.done(fromStream);
        Message<String> queued = Expect.done(fromQueue);
        Expect.equal("values", List.of(streamed.value(), queued.value()), List.of("hello", "hello"));
        stream.async().acknowledgeCumulative(streamed.id());
        queue.async().acknowledge(queued);
        Expect.done(stream.async().close());
        Expect.done(queue.async().close());
        Receiving.nothing(stage.stream("stream")::receive, "it was acknowledged");
        Receiving.nothing(stage.queue("queue")::receive, "it was acknowledged");
    }

    private static void receiveSeveral(Stage stage) throws Exception {
        stage.createTopic(1);
        StreamConsumer<String> consumer = stage.stream("sub");
        Producer<String> producer = stage.producer();
        for (int number = 0; number < 10; number++) {
            producer.newMessage().key("k").value("message " + number).send();
        }
        List<String> received = new ArrayList<>();
        Instant deadline = Instant.now().plus(Limits.DELIVERY_MAX);
        while (received.size() < 10 && Instant.now().isBefore(deadline)) {
            var several = consumer.receiveMulti(4, Limits.QUIET);
            Failure.unless(several.count() <= 4, several.count() + " at once, where 4 were asked for");
            several.forEach(message -> received.add(message.value()));
            if (several.count() > 0) {
                consumer.acknowledgeCumulative(several.lastId());
            }
        }
        Expect.equal("received", received, IntStream.range(0, 10).mapToObj(number -> "message " + number).toList());
        consumer.close();
        Receiving.nothing(stage.stream("sub")::receive, "the last id of each handful was acknowledged");
    }
}
