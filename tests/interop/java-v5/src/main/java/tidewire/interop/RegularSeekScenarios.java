package tidewire.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.TableView;

/** Readers and consumers of regular topics that go elsewhere, with the client of those. */
final class RegularSeekScenarios {
    private static final int HALF = 5;
    private static final int ALL = 2 * HALF;
    private static final int READ_BEFORE = 8;

    private RegularSeekScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("regular_reader_seeks", stage -> readers(stage, false));
        scenarios.put("regular_reader_seeks_in_batches", stage -> readers(stage, true));
        scenarios.put("regular_consumer_seeks", stage -> consumers(stage, false));
        scenarios.put("regular_consumer_seeks_in_batches", stage -> consumers(stage, true));
        scenarios.put("regular_table_view", RegularSeekScenarios::tableView);
    }

    /** Two rounds of numbers; a moment between them. */
    private static long fill(PulsarClient client, String topic, boolean batches) throws Exception {
        long moment = 0;
        try (Producer<String> producer = client.newProducer(Schema.STRING)
                .topic(topic)
                .enableBatching(batches)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS)
                .create()) {
            for (int number = 0; number < ALL; number++) {
                if (number == HALF) {
                    producer.flush();
                    Thread.sleep(20);
                    moment = System.currentTimeMillis();
                    Thread.sleep(20);
                }
                CompletableFuture<MessageId> sent = producer.sendAsync(String.valueOf(number));
                if (!batches) {
                    sent.get();
                }
            }
            producer.flush();
        }
        return moment;
    }

    private static void expect(String what, int from, List<String> got) throws Failure {
        List<String> wanted = new ArrayList<>();
        for (int number = from; number < ALL; number++) {
            wanted.add(String.valueOf(number));
        }
        Expect.equal(what, got, wanted);
    }

    private static void readers(Stage stage, boolean batches) throws Exception {
        PulsarClient client = stage.oldClient();
        long moment = fill(client, stage.regular, batches);
        for (boolean inclusive : new boolean[] {false, true}) {
            String kind = inclusive ? "inclusive, " : "exclusive, ";
            try (Reader<String> reader = reader(client, stage.regular, inclusive)) {
                reader.seek(moment);
                expect(kind + "to a time", HALF, available(reader));
            }
            try (Reader<String> reader = reader(client, stage.regular, inclusive)) {
                reader.seek(MessageId.earliest);
                expect(kind + "to the earliest", 0, available(reader));
            }
            try (Reader<String> reader = reader(client, stage.regular, inclusive)) {
                reader.seek(MessageId.latest);
                expect(kind + "to the latest", inclusive ? ALL - 1 : ALL, available(reader));
            }
            try (Reader<String> reader = client.newReader(Schema.STRING)
                    .topic(stage.regular)
                    .startMessageId(MessageId.earliest)
                    .startMessageIdInclusive()
                    .create()) {
                MessageId third = null;
                for (int number = 0; number <= 3; number++) {
                    third = next(reader).getMessageId();
                }
                try (Reader<String> other = reader(client, stage.regular, inclusive)) {
                    other.seek(third);
                    expect(kind + "to a message", inclusive ? 3 : 4, available(other));
                }
            }
        }
    }

    private static Reader<String> reader(PulsarClient client, String topic, boolean inclusive) throws Exception {
        var builder = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.earliest);
        Reader<String> reader = (inclusive ? builder.startMessageIdInclusive() : builder).create();
        for (int number = 0; number < READ_BEFORE; number++) {
            Expect.equal("before the seek", next(reader).getValue(), String.valueOf(number));
        }
        return reader;
    }

    private static Message<String> next(Reader<String> reader) throws Exception {
        Message<String> message = reader.readNext((int) Limits.DELIVERY_MAX.toSeconds(), TimeUnit.SECONDS);
        if (message == null) {
            throw new Failure("nothing came");
        }
        return message;
    }

    private static List<String> available(Reader<String> reader) throws Exception {
        List<String> values = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            values.add(next(reader).getValue());
        }
        return values;
    }

    private static void consumers(Stage stage, boolean batches) throws Exception {
        PulsarClient client = stage.oldClient();
        long moment = fill(client, stage.regular, batches);
        try (Consumer<String> consumer = client.newConsumer(Schema.STRING)
                .topic(stage.regular)
                .subscriptionName("sub")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe()) {
            List<Message<String>> first = receive(consumer, ALL);
            consumer.acknowledgeCumulative(first.get(ALL - 1));
            consumer.seek(moment);
            expect("to a time", HALF, values(receive(consumer, ALL - HALF)));
            consumer.seek(MessageId.earliest);
            expect("to the earliest", 0, values(receive(consumer, ALL)));
            consumer.seek(first.get(7).getMessageId());
            // The client leaves the message itself out.
            expect("to a message", 8, values(receive(consumer, ALL - 8)));
            consumer.seek(MessageId.latest);
            try (Producer<String> producer =
                    client.newProducer(Schema.STRING).topic(stage.regular).create()) {
                producer.send("new");
            }
            Expect.equal("to the latest", values(receive(consumer, 1)), List.of("new"));
        }
    }

    private static List<Message<String>> receive(Consumer<String> consumer, int count) throws Exception {
        List<Message<String>> received = new ArrayList<>();
        while (received.size() < count) {
            Message<String> message = consumer.receive((int) Limits.DELIVERY_MAX.toSeconds(), TimeUnit.SECONDS);
            if (message == null) {
                throw new Failure("only " + values(received) + " came");
            }
            received.add(message);
        }
        Message<String> more = consumer.receive((int) Limits.QUIET.toMillis(), TimeUnit.MILLISECONDS);
        if (more != null) {
            throw new Failure(more.getValue() + " came behind " + values(received));
        }
        return received;
    }

    private static List<String> values(List<Message<String>> messages) {
        return messages.stream().map(Message::getValue).toList();
    }

    private static void tableView(Stage stage) throws Exception {
        PulsarClient client = stage.oldClient();
        try (Producer<String> producer =
                client.newProducer(Schema.STRING).topic(stage.regular).create()) {
            producer.newMessage().key("a").value("1").send();
            producer.newMessage().key("b").value("2").send();
            producer.newMessage().key("a").value("3").send();
        }
        try (TableView<String> view =
                client.newTableView(Schema.STRING).topic(stage.regular).create()) {
            Expect.equal("the last of a", view.get("a"), "3");
            Expect.equal("the last of b", view.get("b"), "2");
            Expect.equal("the table's size", view.size(), 2);
        }
    }
}
