package tidewire.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.schema.GenericRecord;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Values that are more than bytes, and what a topic refuses once it knows its values. */
final class SchemaScenarios {
    /** A flight as its first program knew it. */
    public static final class Flight {
        public String number;
        public int seats;

        public Flight() {
        }

        Flight(String number, int seats) {
            this.number = number;
            this.seats = seats;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Flight flight && flight.number.equals(number) && flight.seats == seats;
        }

        @Override
        public int hashCode() {
            return Objects.hash(number, seats);
        }

        @Override
        public String toString() {
            return number + " with " + seats;
        }
    }

    /** The same record with one more field, which may be absent. */
    static final class Later {
        private Later() {
        }

        /** Named as the first one, as it is the same record to a schema. */
        public static final class Flight {
            public String number;
            public int seats;
            public String gate;

            public Flight() {
            }
        }
    }

    /** The same record with a field of another type. */
    static final class Other {
        private Other() {
        }

        public static final class Flight {
            public String number;
            public String seats;

            public Flight() {
            }
        }
    }

    private static final List<Flight> FLIGHTS = List.of(new Flight("TW 1", 180), new Flight("TW 2", 0));

    private SchemaScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("schema_bool", stage -> values(stage, Schema.bool(), List.of(true, false)));
        scenarios.put("schema_int8", stage -> values(stage, Schema.int8(), List.of((byte) -128, (byte) 127)));
        scenarios.put("schema_int16",
                stage -> values(stage, Schema.int16(), List.of(Short.MIN_VALUE, Short.MAX_VALUE)));
        scenarios.put("schema_int32",
                stage -> values(stage, Schema.int32(), List.of(Integer.MIN_VALUE, 0, Integer.MAX_VALUE)));
        scenarios.put("schema_int64", stage -> values(stage, Schema.int64(), List.of(Long.MIN_VALUE, Long.MAX_VALUE)));
        scenarios.put("schema_float32",
                stage -> values(stage, Schema.float32(), List.of(1.5f, Float.NEGATIVE_INFINITY)));
        scenarios.put("schema_float64", stage -> values(stage, Schema.float64(), List.of(Math.PI, Double.MIN_VALUE)));
        scenarios.put("schema_string", stage -> values(stage, Schema.string(), List.of("", "ordinary", "žluťoučký 🦀")));
        scenarios.put("schema_json", stage -> values(stage, Schema.json(Flight.class), FLIGHTS));
        scenarios.put("schema_avro", stage -> values(stage, Schema.avro(Flight.class), FLIGHTS));
        scenarios.put("schema_avro_in_transaction", SchemaScenarios::inTransaction);
        scenarios.put("schema_auto_consume", SchemaScenarios::autoConsume);
        scenarios.put("schema_of_encoded_bytes", SchemaScenarios::encodedBytes);
        scenarios.put("schema_grows_by_a_field", SchemaScenarios::grows);
        scenarios.put("incompatible_avro_producer_is_refused", SchemaScenarios::incompatibleProducer);
        scenarios.put("incompatible_json_producer_is_refused", SchemaScenarios::incompatibleJson);
        scenarios.put("incompatible_consumer_is_refused", SchemaScenarios::incompatibleConsumer);
        scenarios.put("other_kind_of_schema_is_refused", SchemaScenarios::otherKind);
        scenarios.put("schema_holds_after_split", SchemaScenarios::afterSplit);
    }

    /** As they went in, to a stream and to a queue consumer. */
    private static <T> void values(Stage stage, Schema<T> schema, List<T> values) throws Exception {
        stage.createTopic(1);
        Producer<T> producer = stage.producer(schema, stage.topic);
        for (T value : values) {
            producer.newMessage().key("k").value(value).send();
        }
        StreamConsumer<T> stream = stage.stream(schema, stage.topic, "stream");
        QueueConsumer<T> queue = stage.queue(schema, stage.topic, "queue");
        Expect.equal("from the stream", Receiving.values(Receiving.first(stream::receive, values.size())), values);
        Expect.equal("from the queue", Receiving.values(Receiving.first(queue::receive, values.size())), values);
    }

    /** T14: a schema makes no difference to a transaction. */
    private static void inTransaction(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<Flight> producer = stage.producer(Schema.avro(Flight.class), stage.topic);
        Transaction aborted = stage.begin();
        Transaction committed = stage.begin();
        producer.newMessage().key("k").value(FLIGHTS.get(0)).transaction(aborted).send();
        producer.newMessage().key("k").value(FLIGHTS.get(1)).transaction(committed).send();
        aborted.abort();
        committed.commit();
        Expect.equal("received", Receiving.values(Receiving.exactly(
                stage.queue(Schema.avro(Flight.class), stage.topic, "sub")::receive, 1)), List.of(FLIGHTS.get(1)));
    }

    /** A consumer that learns from the broker what the bytes mean. */
    private static void autoConsume(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<Flight> producer = stage.producer(Schema.avro(Flight.class), stage.topic);
        producer.newMessage().key("k").value(FLIGHTS.get(0)).send();
        QueueConsumer<GenericRecord> consumer = stage.queue(Schema.autoConsume(), stage.topic, "sub");
        GenericRecord record = Receiving.one(consumer::receive).value();
        Expect.equal("number", String.valueOf(record.field("number")), "TW 1");
        Expect.equal("seats", record.field("seats"), 180);
        Expect.equal("number of fields", record.fields().size(), 2);
    }

    /** A producer of what another program has encoded already. */
    private static void encodedBytes(Stage stage) throws Exception {
        stage.createTopic(1);
        Schema<Flight> schema = Schema.avro(Flight.class);
        Producer<Flight> first = stage.producer(schema, stage.topic);
        first.newMessage().key("k").value(FLIGHTS.get(0)).send();
        Producer<byte[]> second = stage.producer(Schema.autoProduceBytesOf(schema), stage.topic);
        second.newMessage().key("k").value(schema.encode(FLIGHTS.get(1))).send();
        Expect.equal("received", Receiving.values(Receiving.exactly(
                stage.queue(schema, stage.topic, "sub")::receive, 2)), FLIGHTS);
    }

    /** Old and new messages lie in one segment; a reader of either kind reads both. */
    private static void grows(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<Flight> old = stage.producer(Schema.avro(Flight.class), stage.topic);
        old.newMessage().key("k").value(FLIGHTS.get(0)).send();
        Producer<Later.Flight> grown = stage.producer(Schema.avro(Later.Flight.class), stage.topic);
        Later.Flight flight = new Later.Flight();
        flight.number = "TW 3";
        flight.seats = 99;
        flight.gate = "B 7";
        grown.newMessage().key("k").value(flight).send();
        List<String> seen = new ArrayList<>();
        for (Message<Later.Flight> message : Receiving.exactly(
                stage.queue(Schema.avro(Later.Flight.class), stage.topic, "new")::receive, 2)) {
            seen.add(message.value().number + " at " + message.value().gate);
        }
        Expect.equal("to the new reader", seen, List.of("TW 1 at null", "TW 3 at B 7"));
        Expect.equal("to the old reader", Receiving.values(Receiving.exactly(
                stage.queue(Schema.avro(Flight.class), stage.topic, "old")::receive, 2)),
                List.of(FLIGHTS.get(0), new Flight("TW 3", 99)));
    }

    private static void incompatibleProducer(Stage stage) throws Exception {
        stage.createTopic(1);
        stage.producer(Schema.avro(Flight.class), stage.topic).newMessage().key("k").value(FLIGHTS.get(0)).send();
        Other.Flight flight = new Other.Flight();
        flight.number = "TW 1";
        flight.seats = "many";
        Expect.refused("an incompatible record", () -> stage.producer(Schema.avro(Other.Flight.class), stage.topic)
                .newMessage().key("k").value(flight).send());
        Receiving.exactly(stage.queue(Schema.avro(Flight.class), stage.topic, "sub")::receive, 1);
    }

    private static void incompatibleJson(Stage stage) throws Exception {
        stage.createTopic(1);
        stage.producer(Schema.json(Flight.class), stage.topic).newMessage().key("k").value(FLIGHTS.get(0)).send();
        Other.Flight flight = new Other.Flight();
        flight.number = "TW 1";
        flight.seats = "many";
        Expect.refused("an incompatible record", () -> stage.producer(Schema.json(Other.Flight.class), stage.topic)
                .newMessage().key("k").value(flight).send());
        Receiving.exactly(stage.queue(Schema.json(Flight.class), stage.topic, "sub")::receive, 1);
    }

    private static void incompatibleConsumer(Stage stage) throws Exception {
        stage.createTopic(1);
        stage.producer(Schema.avro(Flight.class), stage.topic).newMessage().key("k").value(FLIGHTS.get(0)).send();
        Expect.refused("a consumer of an incompatible record",
                () -> stage.queue(Schema.avro(Other.Flight.class), stage.topic, "sub"));
        Receiving.exactly(stage.queue(Schema.avro(Flight.class), stage.topic, "sub")::receive, 1);
    }

    private static void otherKind(Stage stage) throws Exception {
        stage.createTopic(1);
        stage.producer(Schema.avro(Flight.class), stage.topic).newMessage().key("k").value(FLIGHTS.get(0)).send();
        Expect.refused("a number on a topic of records",
                () -> stage.producer(Schema.int64(), stage.topic).newMessage().key("k").value(1L).send());
        Receiving.exactly(stage.queue(Schema.avro(Flight.class), stage.topic, "sub")::receive, 1);
    }

    /** The children's values are the parent's: what the topic refused before, it refuses there. */
    private static void afterSplit(Stage stage) throws Exception {
        stage.createTopic(1);
        Producer<Flight> producer = stage.producer(Schema.avro(Flight.class), stage.topic);
        producer.newMessage().key("k").value(FLIGHTS.get(0)).send();
        stage.split(0);
        Expect.refused("a number on a topic of records",
                () -> stage.producer(Schema.int64(), stage.topic).newMessage().key("k").value(1L).send());
        producer.newMessage().key("k").value(FLIGHTS.get(1)).send();
        Expect.equal("received", Receiving.values(Receiving.exactly(
                stage.stream(Schema.avro(Flight.class), stage.topic, "sub")::receive, 1)), List.of(FLIGHTS.get(0)));
    }
}
