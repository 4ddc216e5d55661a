package tidewire.interop;

import com.google.gson.Gson;
import java.time.Duration;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Reads a JSON value that Spark wrote, prints what it holds, and sends it again; `tests/interop/test_spark_java_json.py`
 * runs it.
 *
 * <p>Arguments: {@code SERVICE_URL TOPIC}. Prints one JSON object on its last line; bytes are in base64.
 */
public final class SparkValues {
    private static final Duration TIMEOUT = Duration.ofMinutes(1);

    /** Named as the record of Spark's sink. */
    public static final class Value {
        public Long at;
        public Integer on;
        public String price;
        public byte[] data;

        public Value() {
        }
    }

    private SparkValues() {
    }

    public static void main(String[] arguments) throws Exception {
        Schema<Value> schema = Schema.json(Value.class);
        try (PulsarClient client = Stage.connect(arguments[0], TIMEOUT);
                QueueConsumer<Value> consumer = client.newQueueConsumer(schema)
                        .topic(arguments[1])
                        .subscriptionName("java")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe()) {
            Message<Value> message = consumer.receive(TIMEOUT);
            if (message == null) {
                throw new Failure("no message came within " + TIMEOUT);
            }
            Value value = message.value();
            try (Producer<Value> producer = client.newProducer(schema).topic(arguments[1]).create()) {
                producer.newMessage().value(value).send();
            }
            Map<String, Object> told = new LinkedHashMap<>();
            told.put("at", value.at);
            told.put("on", value.on);
            told.put("price", value.price);
            told.put("data", Base64.getEncoder().encodeToString(value.data));
            System.out.println(new Gson().toJson(told));
        }
    }
}
