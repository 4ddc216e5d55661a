package tidewire.interop;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProcessingTimeoutPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Queue consumers that could not do their work: what comes again, when, how often, and where it ends up. */
final class RedeliveryScenarios {
    private static final BackoffPolicy SOON =
            BackoffPolicy.exponential(Duration.ofMillis(100), Duration.ofMillis(400));

    private RedeliveryScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("negative_ack_comes_again", RedeliveryScenarios::negativeAck);
        scenarios.put("negative_ack_goes_to_either_consumer", RedeliveryScenarios::negativeAckToEither);
        scenarios.put("negative_ack_inside_a_batch", RedeliveryScenarios::negativeAckInBatch);
        scenarios.put("negative_ack_on_sealed_parent", RedeliveryScenarios::negativeAckOnSealedParent);
        scenarios.put("ack_timeout_comes_again", RedeliveryScenarios::ackTimeout);
        scenarios.put("dead_letter_after_redeliveries", RedeliveryScenarios::deadLetter);
        scenarios.put("acknowledged_part_of_batch_stays_so", RedeliveryScenarios::partOfBatch);
        scenarios.put("unacknowledged_comes_to_every_successor", RedeliveryScenarios::everySuccessor);
    }

    private static QueueConsumer<String> consumer(Stage stage) throws Exception {
        return stage.keep(stage.queueBuilder(Schema.string(), stage.topic, "sub")
                .negativeAckRedeliveryBackoff(SOON).subscribe());
    }

    private static void sendFive(Stage stage) throws Exception {
        Producer<String> producer = stage.producer();
        for (int number = 0; number < 5; number++) {
            producer.newMessage().key("k").value("message " + number).send();
        }
    }

    /** Sends ten messages as one batch. */
    static void sendBatch(Stage stage) throws Exception {
        Producer<String> producer =
                stage.producer(MessageScenarios.inOneBatch(stage.client.newProducer(Schema.string()), 10));
        List<CompletableFuture<?>> receipts = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            receipts.add(producer.async().newMessage().key("k").value("message " + number).send());
        }
        Expect.allDone(receipts);
    }

    /** Only that message, with a higher count each time. */
    private static void negativeAck(Stage stage) throws Exception {
        stage.createTopic(1);
        QueueConsumer<String> consumer = consumer(stage);
        sendFive(stage);
        for (Message<String> message : Receiving.exactly(consumer::receive, 5)) {
            if (message.value().equals("message 2")) {
                consumer.negativeAcknowledge(message.id());
            } else {
                consumer.acknowledge(message.id());
            }
        }
        for (int count = 1; count <= 3; count++) {
            Message<String> again = Receiving.one(consumer::receive);
            Expect.equal("what came again", again.value(), "message 2");
            Expect.equal("its redelivery count", again.redeliveryCount(), count);
            if (count < 3) {
                consumer.async().negativeAcknowledge(again);
            } else {
                consumer.acknowledge(again.id());
            }
        }
        Receiving.nothing(consumer::receive, "it was acknowledged in the end");
    }

    /** Whoever gets it next acknowledges it, and so it ends. */
    private static void negativeAckToEither(Stage stage) throws Exception {
        stage.createTopic(1);
        QueueConsumer<String> one = consumer(stage);
        sendFive(stage);
        List<Message<String>> held = Receiving.exactly(one::receive, 5);
        QueueConsumer<String> other = consumer(stage);
        held.forEach(message -> one.negativeAcknowledge(message.id()));
        List<String> again = new ArrayList<>();
        long deadline = System.nanoTime() + Limits.DELIVERY_MAX.toNanos();
        while (again.size() < 5 && System.nanoTime() < deadline) {
            for (QueueConsumer<String> consumer : List.of(one, other)) {
                Message<String> message = consumer.receive(Limits.TURN);
                if (message != null) {
                    again.add(message.value());
                    consumer.acknowledge(message.id());
                }
            }
        }
        Receiving.sameInAnyOrder("what came again", again, Receiving.values(held));
        Receiving.nothing(one::receive, "everything was acknowledged");
        Receiving.nothing(other::receive, "everything was acknowledged");
    }

    /** The acknowledged rest of the batch does not come with it. */
    private static void negativeAckInBatch(Stage stage) throws Exception {
        stage.createTopic(1);
        // Acknowledgements leave the client at once, so that the negative one does not overtake them.
        QueueConsumer<String> consumer = stage.keep(stage.queueBuilder(Schema.string(), stage.topic, "sub")
                .acknowledgmentGroupTime(Duration.ZERO).negativeAckRedeliveryBackoff(SOON).subscribe());
        sendBatch(stage);
        List<Message<String>> batch = Receiving.exactly(consumer::receive, 10);
        for (int number = 0; number < 10; number++) {
            if (number != 3) {
                consumer.acknowledge(batch.get(number).id());
            }
        }
        consumer.negativeAcknowledge(batch.get(3).id());
        List<Message<String>> again = Receiving.exactly(consumer::receive, 1);
        Expect.equal("what came again", again.get(0).value(), "message 3");
        consumer.acknowledge(again.get(0).id());
        Receiving.nothing(consumer::receive, "it was acknowledged in the end");
    }

    /** T20: a message of a segment that is split meanwhile is delivered again all the same. */
    private static void negativeAckOnSealedParent(Stage stage) throws Exception {
        stage.createTopic(1);
        QueueConsumer<String> consumer = consumer(stage);
        sendFive(stage);
        List<Message<String>> held = Receiving.exactly(consumer::receive, 5);
        stage.split(0);
        held.forEach(message -> consumer.negativeAcknowledge(message.id()));
        List<Message<String>> again = Receiving.first(consumer::receive, 5);
        Receiving.sameInAnyOrder("what came again", Receiving.values(again), Receiving.values(held));
        again.forEach(message -> consumer.acknowledge(message.id()));
        consumer.close();
        Receiving.nothing(stage.queue("sub")::receive, "everything was acknowledged in the end");
    }

    /** Whatever is not acknowledged within some seconds. */
    private static void ackTimeout(Stage stage) throws Exception {
        stage.createTopic(1);
        QueueConsumer<String> consumer = stage.keep(stage.queueBuilder(Schema.string(), stage.topic, "sub")
                .processingTimeout(ProcessingTimeoutPolicy.of(Duration.ofSeconds(5))).subscribe());
        sendFive(stage);
        List<Message<String>> first = Receiving.first(consumer::receive, 5);
        consumer.acknowledge(first.get(0).id());
        List<Message<String>> again = Receiving.first(consumer::receive, 4);
        again.forEach(message -> consumer.acknowledge(message.id()));
        Receiving.sameInAnyOrder("what came again", Receiving.values(again),
                Receiving.values(first.subList(1, 5)));
        consumer.close();
        Receiving.nothing(stage.queue("sub")::receive, "everything was acknowledged in the end");
    }

    /** After two redeliveries in vain a message is moved to the other topic, with its key, and acknowledged here. */
    private static void deadLetter(Stage stage) throws Exception {
        stage.createTopic(1);
        String letters = stage.createAnother("letters", 1);
        QueueConsumer<String> consumer = stage.keep(stage.queueBuilder(Schema.string(), stage.topic, "sub")
                .negativeAckRedeliveryBackoff(SOON)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(letters).build())
                .subscribe());
        stage.producer().newMessage().key("k").value("hopeless").property("colour", "blue").send();
        for (int count = 0; count <= 2; count++) {
            Message<String> message = Receiving.one(consumer::receive);
            Expect.equal("redelivery count", message.redeliveryCount(), count);
            consumer.negativeAcknowledge(message.id());
        }
        QueueConsumer<byte[]> undertaker = stage.queue(Schema.bytes(), letters, "undertaker");
        Message<byte[]> letter = Receiving.exactly(undertaker::receive, 1).get(0);
        Expect.equal("the letter", new String(letter.value()), "hopeless");
        Expect.equal("its key", letter.key().orElse(null), "k");
        Expect.equal("its own property", letter.properties().get("colour"), "blue");
        Expect.equal("where it comes from", letter.properties().get("REAL_TOPIC"), stage.topic);
        consumer.close();
        Receiving.nothing(stage.queue("sub")::receive, "it was moved");
    }

    /** Seven of ten; the successor gets three. */
    private static void partOfBatch(Stage stage) throws Exception {
        stage.createTopic(1);
        QueueConsumer<String> consumer = consumer(stage);
        sendBatch(stage);
        List<Message<String>> batch = Receiving.exactly(consumer::receive, 10);
        batch.subList(0, 7).forEach(message -> consumer.acknowledge(message.id()));
        consumer.close();
        Receiving.sameInAnyOrder("what the successor got",
                Receiving.values(Receiving.exactly(stage.queue("sub")::receive, 3)),
                IntStream.range(7, 10).mapToObj(number -> "message " + number).toList());
    }

    /** What was only ever in a closed consumer's queue is whole for its successor. */
    private static void everySuccessor(Stage stage) throws Exception {
        stage.createTopic(1);
        sendFive(stage);
        for (int consumers = 0; consumers < 3; consumers++) {
            QueueConsumer<String> consumer = consumer(stage);
            Receiving.sameInAnyOrder("received", Receiving.values(Receiving.exactly(consumer::receive, 5)),
                    IntStream.range(0, 5).mapToObj(number -> "message " + number).toList());
            consumer.close();
        }
    }
}
