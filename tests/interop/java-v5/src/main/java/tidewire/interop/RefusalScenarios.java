package tidewire.interop;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;

/** A refusal of an unsupported feature reaches the client at once and names the feature. Other requests still work. */
final class RefusalScenarios {
    private RefusalScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("delayed_delivery_is_refused", RefusalScenarios::delayedDelivery);
        scenarios.put("reconsuming_later_is_refused", RefusalScenarios::reconsumeLater);
        scenarios.put("credentials_are_refused", RefusalScenarios::credentials);
        scenarios.put("unserved_producers_are_refused", RefusalScenarios::producers);
        scenarios.put("unserved_consumers_are_refused", RefusalScenarios::consumers);
    }

    /** Holds that it is refused with these words, and soon. */
    private static void refused(String words, Expect.Step step) throws Exception {
        long start = System.currentTimeMillis();
        try {
            step.run();
            throw new Failure(words + ": it was accepted");
        } catch (PulsarClientException refusal) {
            Failure.unless(
                    String.valueOf(refusal.getMessage()).contains(words),
                    "the refusal does not say \"" + words + "\": " + refusal);
        }
        if (System.currentTimeMillis() - start > Limits.AT_ONCE.toMillis()) {
            throw new Failure("it was refused only after " + (System.currentTimeMillis() - start) + " ms");
        }
    }

    private static void delayedDelivery(Stage stage) throws Exception {
        PulsarClient client = stage.oldClient();
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(stage.regular).create()) {
            refused("does not support delayed delivery",
                    () -> producer.newMessage().value("late").deliverAfter(1, TimeUnit.SECONDS).send());
            producer.send("now");
        }
    }

    private static void reconsumeLater(Stage stage) throws Exception {
        PulsarClient client = stage.oldClient();
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(stage.regular).create();
                Consumer<String> consumer = client.newConsumer(Schema.STRING)
                        .topic(stage.regular)
                        .subscriptionName("sub")
                        .subscriptionType(SubscriptionType.Shared)
                        .enableRetry(true)
                        .subscribe()) {
            producer.send("again");
            Message<String> message = consumer.receive((int) Limits.DELIVERY_MAX.toSeconds(), TimeUnit.SECONDS);
            refused("does not support delayed delivery", () -> consumer.reconsumeLater(message, 1, TimeUnit.SECONDS));
        }
    }

    private static void credentials(Stage stage) throws Exception {
        try (PulsarClient client = PulsarClient.builder()
                .serviceUrl(stage.serviceUrl())
                .authentication(AuthenticationFactory.token("a.b.c"))
                .build()) {
            refused("does not check credentials",
                    () -> client.newProducer(Schema.STRING).topic(stage.regular).create());
        }
    }

    private static void producers(Stage stage) throws Exception {
        PulsarClient client = stage.oldClient();
        for (ProducerAccessMode mode : ProducerAccessMode.values()) {
            if (mode != ProducerAccessMode.Shared) {
                refused("access mode " + mode, () -> client.newProducer(Schema.STRING)
                        .topic(stage.regular)
                        .accessMode(mode)
                        .create());
            }
        }
    }

    private static void consumers(Stage stage) throws Exception {
        PulsarClient client = stage.oldClient();
        for (SubscriptionType type : new SubscriptionType[] {SubscriptionType.Failover, SubscriptionType.Key_Shared}) {
            refused("type " + type, () -> client.newConsumer(Schema.STRING)
                    .topic(stage.regular)
                    .subscriptionName("sub")
                    .subscriptionType(type)
                    .subscribe());
        }
        refused("does not support properties", () -> client.newConsumer(Schema.STRING)
                .topic(stage.regular)
                .subscriptionName("sub")
                .subscriptionProperties(Map.of("a", "b"))
                .subscribe());
    }
}
