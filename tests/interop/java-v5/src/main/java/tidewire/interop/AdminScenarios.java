package tidewire.interop;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.ScalableTopics;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;
import org.apache.pulsar.common.policies.data.AutoScalePolicyOverride;
import org.apache.pulsar.common.policies.data.ScalableSubscriptionType;
import org.apache.pulsar.common.policies.data.ScalableTopicMetadata;
import org.apache.pulsar.common.policies.data.ScalableTopicStats;

/**
 * Plays Pulsar's own client for administrators against a broker, with the v5 client beside it to see what came of it.
 *
 * <p>Arguments: {@code SERVICE_URL HTTP_URL [SCENARIO...]}. Prints {@code PASS name} or {@code FAIL name: reason} for
 * each scenario and at the end {@code N passed, N failed}; the exit status is 0 only when all passed.
 */
public final class AdminScenarios {
    private static final Duration DELIVERY_MAX = Duration.ofSeconds(60);
    private static final Duration QUIET = Duration.ofMillis(400);
    private static final long CALL_SECONDS_MAX = 60;
    private static final String NAMESPACE = "public/default";

    /** One story; it fails by throwing. */
    @FunctionalInterface
    private interface Story {
        void play(AdminScenarios stage) throws Exception;
    }

    /** A call that is to be refused. */
    @FunctionalInterface
    private interface Call {
        void make() throws Exception;
    }

    private final PulsarAdmin admin;
    private final ScalableTopics topics;
    private final PulsarClient client;
    private final String serviceUrl;
    private final String name;
    private final String topic;

    private AdminScenarios(PulsarAdmin admin, PulsarClient client, String serviceUrl, String name) {
        this.admin = admin;
        this.topics = admin.scalableTopics();
        this.client = client;
        this.serviceUrl = serviceUrl;
        this.name = name;
        this.topic = "topic://" + NAMESPACE + "/" + name;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Story> stories = new LinkedHashMap<>();
        stories.put("admin_health", AdminScenarios::health);
        stories.put("admin_creates_shows_and_deletes", AdminScenarios::createShowDelete);
        stories.put("admin_lists_by_properties", AdminScenarios::listByProperties);
        stories.put("admin_splits_and_merges", AdminScenarios::splitAndMerge);
        stories.put("admin_refused_changes_of_layouts", AdminScenarios::refusedLayouts);
        stories.put("admin_subscriptions", AdminScenarios::subscriptions);
        stories.put("admin_deletes_subscription_in_use", AdminScenarios::deleteSubscriptionInUse);
        stories.put("admin_clears_backlog", AdminScenarios::clearBacklog);
        stories.put("admin_seeks_queue_by_time", AdminScenarios::seekQueue);
        stories.put("admin_seeks_attached_stream_over_split", AdminScenarios::seekStreamOverSplit);
        stories.put("admin_segment_backlog_and_seek", AdminScenarios::segmentBacklog);
        stories.put("admin_scaling_policy", AdminScenarios::scalingPolicy);
        stories.put("admin_unknown_topic", AdminScenarios::unknownTopic);
        stories.put("admin_topic_names", AdminScenarios::topicNames);
        stories.put("admin_force_deletes_under_clients", AdminScenarios::forceDelete);
        stories.put("admin_migrates", AdminScenarios::migrate);
        stories.put("admin_migrates_under_clients", AdminScenarios::migrateUnderClients);
        stories.put("namespace_queue_consumer_follows_topics", AdminScenarios::namespaceQueue);
        stories.put("namespace_stream_consumer_follows_topics", AdminScenarios::namespaceStream);
        stories.put("namespace_consumer_begins_with_no_topic", AdminScenarios::namespaceEmpty);
        List<String> chosen = List.of(arguments).subList(2, arguments.length);
        if (!chosen.isEmpty()) {
            stories.keySet().retainAll(chosen);
        }
        String run = UUID.randomUUID().toString().substring(0, 8);
        int failed = 0;
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build();
                PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (Map.Entry<String, Story> entry : stories.entrySet()) {
                String name = entry.getKey() + "-" + run;
                try {
                    entry.getValue().play(new AdminScenarios(admin, client, arguments[0], name));
                    System.out.println("PASS " + entry.getKey());
                } catch (Exception e) {
                    failed++;
                    e.printStackTrace();
                    System.out.println("FAIL " + entry.getKey() + ": " + e.toString().replaceAll("\\s+", " "));
                }
            }
        }
        System.out.println((stories.size() - failed) + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    private void health() throws Exception {
        admin.brokers().healthcheck();
    }

    private void createShowDelete() throws Exception {
        topics.createScalableTopic(topic, 3, Map.of("team", "a", "k", "grüße"));
        ScalableTopicMetadata metadata = topics.getMetadata(topic);
        expect(metadata.getEpoch(), 0L, "the epoch");
        expect(metadata.getNextSegmentId(), 3L, "the next segment's id");
        expect(metadata.getProperties(), Map.of("team", "a", "k", "grüße"), "the properties");
        expect(metadata.getSegments().keySet(), Set.of(0L, 1L, 2L), "the segments");
        expect(metadata.getSegments().get(0L).getState(), "ACTIVE", "a segment's state");
        expect(metadata.getSegments().get(2L).getHashRange().getEnd(), 0xffff, "the end of the hash space");
        expect(metadata.getSegments().get(0L).getSealedAtEpoch(), -1L, "when a segment was sealed that was not");
        refused(409, () -> topics.createScalableTopic(topic, 3));
        topics.deleteScalableTopic(topic);
        refused(404, () -> topics.getMetadata(topic));
        refused(404, () -> topics.deleteScalableTopic(topic));
        topics.createScalableTopic(topic, 1);
        expect(topics.getMetadata(topic).getProperties(), Map.of(), "the properties of a topic made anew");
    }

    private void listByProperties() throws Exception {
        String other = topic + "-other";
        topics.createScalableTopic(topic, 1, Map.of("run", name, "tier", "1"));
        topics.createScalableTopic(other, 1, Map.of("run", name, "tier", "2=x"));
        expect(Set.copyOf(topics.listScalableTopicsByProperties(NAMESPACE, Map.of("run", name))),
                Set.of(topic, other), "topics of one run");
        expect(topics.listScalableTopicsByProperties(NAMESPACE, Map.of("run", name, "tier", "2=x")),
                List.of(other), "topics of one run and tier");
        expect(topics.listScalableTopicsByProperties(NAMESPACE, Map.of("run", "none of them")), List.of(), "no topics");
        expect(topics.listScalableTopics(NAMESPACE).containsAll(List.of(topic, other)), true, "all topics hold these");
    }

    private void splitAndMerge() throws Exception {
        topics.createScalableTopic(topic, 2);
        topics.splitSegment(topic, 1);
        ScalableTopicMetadata split = topics.getMetadata(topic);
        expect(split.getEpoch(), 1L, "the epoch after a split");
        expect(split.getSegments().get(1L).getChildIds(), List.of(2L, 3L), "the children");
        expect(split.getSegments().get(1L).getState(), "SEALED", "the parent's state");
        topics.mergeSegments(topic, 3, 2);
        ScalableTopicMetadata merged = topics.getMetadata(topic);
        expect(Set.copyOf(merged.getSegments().get(4L).getParentIds()), Set.of(2L, 3L), "the parents");
        expect(merged.getSegments().get(4L).getHashRange().getStart(), 0x8000, "where the merged segment begins");
        ScalableTopicStats stats = topics.getStats(topic);
        expect(stats.getActiveSegments(), 2, "active segments");
        expect(stats.getEpoch() >= 2, true, "a merge is an epoch");
        expect(stats.getSegments().get(4L).name(), "segment://" + NAMESPACE + "/" + name + "/8000-ffff-4", "its name");
    }

    private void refusedLayouts() throws Exception {
        topics.createScalableTopic(topic, 3);
        topics.createSubscription(topic, "holds", ScalableSubscriptionType.STREAM);
        try (Producer<String> producer = producer()) {
            send(producer, "a", 30);
        }
        topics.splitSegment(topic, 0);
        refused(412, () -> topics.splitSegment(topic, 0));
        refused(412, () -> topics.mergeSegments(topic, 3, 2));
        refused(412, () -> topics.mergeSegments(topic, 0, 1));
        refused(412, () -> topics.mergeSegments(topic, 1, 1));
        refused(404, () -> topics.splitSegment(topic, 77));
        refused(404, () -> topics.mergeSegments(topic, 1, 77));
        expect(topics.getMetadata(topic).getEpoch(), 1L, "the epoch after all that was refused");
        refused(412, () -> topics.createScalableTopic(topic + "-none", 0));
    }

    private void subscriptions() throws Exception {
        topics.createScalableTopic(topic, 2);
        topics.createSubscription(topic, "stream", ScalableSubscriptionType.STREAM);
        topics.createSubscription(topic, "queue", ScalableSubscriptionType.QUEUE);
        topics.createSubscription(topic, "queue", ScalableSubscriptionType.QUEUE);
        try (Producer<String> producer = producer()) {
            send(producer, "a", 10);
        }
        expect(topics.getStats(topic).getSubscriptions().keySet(), Set.of("stream", "queue"), "the subscriptions");
        try (StreamConsumer<String> consumer = stream("stream", SubscriptionInitialPosition.LATEST)) {
            expect(values(consumer, 10).size(), 10, "messages kept for a subscription that was made beforehand");
            expect(topics.getStats(topic).getSubscriptions().get("stream").consumerCount(), 1, "its consumers");
        }
        topics.deleteSubscription(topic, "queue");
        refused(404, () -> topics.deleteSubscription(topic, "queue"));
        expect(topics.getStats(topic).getSubscriptions().keySet(), Set.of("stream"), "the subscription that is left");
    }

    private void deleteSubscriptionInUse() throws Exception {
        topics.createScalableTopic(topic, 1);
        try (Producer<String> producer = producer(); QueueConsumer<String> consumer = queue("s")) {
            send(producer, "a", 3);
            expect(values(consumer, 3).size(), 3, "messages before the subscription was deleted");
            topics.deleteSubscription(topic, "s");
        }
        try (QueueConsumer<String> consumer = queue("s")) {
            expect(values(consumer, 3).size(), 3, "messages of a subscription that begins anew");
        }
    }

    private void clearBacklog() throws Exception {
        topics.createScalableTopic(topic, 2);
        topics.createSubscription(topic, "s", ScalableSubscriptionType.QUEUE);
        try (Producer<String> producer = producer()) {
            send(producer, "before", 10);
            topics.clearBacklog(topic, "s");
            send(producer, "after", 4);
        }
        try (QueueConsumer<String> consumer = queue("s")) {
            expect(values(consumer, 4), Set.of("after-0", "after-1", "after-2", "after-3"), "what was not skipped");
        }
    }

    private void seekQueue() throws Exception {
        topics.createScalableTopic(topic, 2);
        long between;
        try (Producer<String> producer = producer()) {
            send(producer, "early", 4);
            Thread.sleep(20);
            between = System.currentTimeMillis();
            Thread.sleep(20);
            send(producer, "late", 4);
        }
        try (QueueConsumer<String> consumer = queue("s")) {
            expect(values(consumer, 8).size(), 8, "messages at first");
        }
        topics.seekSubscription(topic, "s", between);
        try (QueueConsumer<String> consumer = queue("s")) {
            expect(values(consumer, 4), Set.of("late-0", "late-1", "late-2", "late-3"), "messages since the time");
        }
        topics.seekSubscription(topic, "s", 0);
        try (QueueConsumer<String> consumer = queue("s")) {
            expect(values(consumer, 8).size(), 8, "messages since the beginning");
        }
    }

    private void seekStreamOverSplit() throws Exception {
        topics.createScalableTopic(topic, 1);
        topics.createSubscription(topic, "holds", ScalableSubscriptionType.STREAM);
        try (Producer<String> producer = producer();
                StreamConsumer<String> consumer = stream("s", SubscriptionInitialPosition.EARLIEST)) {
            send(producer, "parent", 5);
            topics.splitSegment(topic, 0);
            send(producer, "child", 5);
            expect(values(consumer, 10).size(), 10, "messages at first");
            topics.seekSubscription(topic, "s", 0);
            List<String> again = inOrder(consumer, 10);
            expect(Set.copyOf(again).size(), 10, "different messages after the seek, of " + again);
            expect(Set.copyOf(again.subList(0, 5)), Set.of("parent-0", "parent-1", "parent-2", "parent-3", "parent-4"),
                    "what comes first after the seek");
        }
    }

    private void segmentBacklog() throws Exception {
        topics.createScalableTopic(topic, 1);
        topics.createSubscription(topic, "s", ScalableSubscriptionType.QUEUE);
        String segment = "segment://" + NAMESPACE + "/" + name + "/0000-ffff-0";
        try (Producer<String> producer = producer()) {
            send(producer, "a", 6);
        }
        expect(answer(topics.getSegmentSubscriptionBacklogAsync(segment, "s")), 6L, "the backlog");
        answer(topics.clearSegmentSubscriptionBacklogAsync(segment, "s"));
        expect(answer(topics.getSegmentSubscriptionBacklogAsync(segment, "s")), 0L, "the backlog when all is skipped");
        answer(topics.seekSegmentSubscriptionAsync(segment, "s", 0));
        expect(answer(topics.getSegmentSubscriptionBacklogAsync(segment, "s")), 6L, "the backlog after a seek");
        refused(404, () -> answer(topics.getSegmentSubscriptionBacklogAsync(segment, "unknown")));
    }

    private void scalingPolicy() throws Exception {
        topics.createScalableTopic(topic, 1);
        expect(topics.getAutoScalePolicy(topic), null, "the policy of a topic that has none of its own");
        AutoScalePolicyOverride override = AutoScalePolicyOverride.builder()
                .enabled(false).maxSegments(8).splitMsgRateInThreshold(5000.5).build();
        topics.setAutoScalePolicy(topic, override);
        expect(topics.getAutoScalePolicy(topic), override, "the policy");
        expect(topics.getMetadata(topic).getAutoScalePolicy(), override, "the policy in the topic's metadata");
        refused(412, () -> topics.setAutoScalePolicy(topic, AutoScalePolicyOverride.builder().maxSegments(0).build()));
        expect(topics.getAutoScalePolicy(topic), override, "the policy after one was refused");
        topics.removeAutoScalePolicy(topic);
        expect(topics.getAutoScalePolicy(topic), null, "the policy when it is removed");
    }

    private void unknownTopic() throws Exception {
        refused(404, () -> topics.getMetadata(topic));
        refused(404, () -> topics.getStats(topic));
        refused(404, () -> topics.deleteScalableTopic(topic, true));
        refused(404, () -> topics.splitSegment(topic, 0));
        refused(404, () -> topics.mergeSegments(topic, 0, 1));
        refused(404, () -> topics.createSubscription(topic, "s", ScalableSubscriptionType.STREAM));
        refused(404, () -> topics.deleteSubscription(topic, "s"));
        refused(404, () -> topics.seekSubscription(topic, "s", 0));
        refused(404, () -> topics.clearBacklog(topic, "s"));
        refused(404, () -> topics.getAutoScalePolicy(topic));
        refused(404, () -> topics.setAutoScalePolicy(topic, AutoScalePolicyOverride.builder().enabled(true).build()));
        refused(404, () -> topics.removeAutoScalePolicy(topic));
    }

    private void topicNames() throws Exception {
        // No percent sign: this client takes %25 in a name for an encoded one already, and asks for another topic.
        String odd = topic + "-grüße a+b";
        topics.createScalableTopic(odd, 1, Map.of("run", name));
        expect(topics.listScalableTopicsByProperties(NAMESPACE, Map.of("run", name)), List.of(odd), "the name");
        topics.getMetadata(odd);
        try (Producer<String> producer = client.newProducer(Schema.string()).topic(odd).create()) {
            send(producer, "a", 1);
        }
        topics.createSubscription(odd, "sub ü", ScalableSubscriptionType.STREAM);
        expect(topics.getStats(odd).getSubscriptions().keySet(), Set.of("sub ü"), "the subscription's name");
        topics.deleteScalableTopic(odd, true);
    }

    private void forceDelete() throws Exception {
        topics.createScalableTopic(topic, 1);
        try (QueueConsumer<String> consumer = queue("s")) {
            expect(consumer.subscription(), "s", "the consumer's subscription");
            refused(412, () -> topics.deleteScalableTopic(topic, false));
            topics.deleteScalableTopic(topic, true);
            refused(404, () -> topics.getMetadata(topic));
        }
    }

    /** Topics that were there, that come, that do not match, and that go: all through one consumer. */
    private void namespaceQueue() throws Exception {
        topics.createScalableTopic(topic + "-1", 2, Map.of("run", name));
        topics.createScalableTopic(topic + "-other", 1, Map.of("run", "another than " + name));
        try (QueueConsumer<String> consumer = client.newQueueConsumer(Schema.string())
                .namespace(NAMESPACE, Map.of("run", name)).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            topics.createScalableTopic(topic + "-2", 1, Map.of("run", name));
            for (String place : List.of("-1", "-2", "-other")) {
                sendTo(topic + place, "first" + place, 3);
            }
            expect(values(consumer, 6), Set.of("first-1-0", "first-1-1", "first-1-2", "first-2-0", "first-2-1",
                    "first-2-2"), "messages of the topics that match");
            topics.deleteScalableTopic(topic + "-1", true);
            topics.createScalableTopic(topic + "-3", 1, Map.of("run", name));
            sendTo(topic + "-3", "then-3", 2);
            sendTo(topic + "-2", "then-2", 2);
            expect(values(consumer, 4), Set.of("then-3-0", "then-3-1", "then-2-0", "then-2-1"),
                    "messages after one topic went and another came");
        }
    }

    private void namespaceStream() throws Exception {
        topics.createScalableTopic(topic + "-1", 2, Map.of("run", name));
        try (StreamConsumer<String> consumer = client.newStreamConsumer(Schema.string())
                .namespace(NAMESPACE, Map.of("run", name)).subscriptionName("s").consumerName("reader")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            topics.createScalableTopic(topic + "-2", 1, Map.of("run", name));
            sendTo(topic + "-1", "a", 3);
            sendTo(topic + "-2", "b", 3);
            expect(values(consumer, 6), Set.of("a-0", "a-1", "a-2", "b-0", "b-1", "b-2"), "messages of both topics");
        }
    }

    private void namespaceEmpty() throws Exception {
        try (QueueConsumer<String> consumer = client.newQueueConsumer(Schema.string())
                .namespace(NAMESPACE, Map.of("run", name)).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe()) {
            topics.createScalableTopic(topic, 1, Map.of("run", name));
            sendTo(topic, "a", 3);
            expect(values(consumer, 3), Set.of("a-0", "a-1", "a-2"), "messages of the topic that came");
        }
    }

    private void sendTo(String topic, String what, int count) throws Exception {
        try (Producer<String> producer = client.newProducer(Schema.string()).topic(topic).create()) {
            send(producer, what, count);
        }
    }

    /** The topic's messages are the new one's, and its name is taken. */
    private void migrate() throws Exception {
        String regular = "persistent://" + NAMESPACE + "/" + name;
        refused(404, () -> topics.migrateToScalable(regular, false));
        try (Producer<String> producer = client.newProducer(Schema.string()).topic(regular).create()) {
            send(producer, "before", 4);
            topics.migrateToScalable(regular, false);
            send(producer, "after", 4);
        }
        ScalableTopicMetadata metadata = topics.getMetadata(topic);
        expect(metadata.getNextSegmentId(), 2L, "the next segment's id");
        expect(metadata.getSegments().keySet(), Set.of(0L, 1L), "the segments");
        expect(metadata.getSegments().get(0L).getState(), "SEALED", "the old topic's state");
        expect(metadata.getSegments().get(1L).getParentIds(), List.of(0L), "the new segment's parents");
        expect(topics.getStats(topic).getSegments().get(0L).name(), regular, "the old topic's name");
        refused(409, () -> topics.migrateToScalable(regular, true));
        refused(409, () -> topics.createScalableTopic(topic, 1));
        topics.splitSegment(topic, 1);
        try (StreamConsumer<String> consumer = stream("after", SubscriptionInitialPosition.EARLIEST)) {
            expect(values(consumer, 8).size(), 8, "the messages");
        }
        topics.deleteScalableTopic(topic);
        refused(404, () -> topics.getMetadata(topic));
    }

    /** Those of the v4 client are in the way, unless they are not to be waited for. */
    private void migrateUnderClients() throws Exception {
        String regular = "persistent://" + NAMESPACE + "/" + name;
        try (var old = org.apache.pulsar.client.api.PulsarClient.builder().serviceUrl(serviceUrl).build();
                var producer = old.newProducer().topic(regular).create()) {
            producer.send(new byte[1]);
            refused(409, () -> topics.migrateToScalable(regular, false));
            refused(404, () -> topics.getMetadata(topic));
            producer.send(new byte[1]);
            topics.migrateToScalable(regular, true);
            try {
                producer.send(new byte[1]);
            } catch (org.apache.pulsar.client.api.PulsarClientException expected) {
                return;
            }
            throw new Failure("a v4 producer went on after the migration");
        }
    }

    private Producer<String> producer() throws Exception {
        return client.newProducer(Schema.string()).topic(topic).create();
    }

    private StreamConsumer<String> stream(String subscription, SubscriptionInitialPosition start) throws Exception {
        return client.newStreamConsumer(Schema.string()).topic(topic).subscriptionName(subscription)
                .consumerName("reader").subscriptionInitialPosition(start).subscribe();
    }

    private QueueConsumer<String> queue(String subscription) throws Exception {
        return client.newQueueConsumer(Schema.string()).topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
    }

    private static void send(Producer<String> producer, String what, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            producer.newMessage().key("key-" + i).value(what + "-" + i).send();
        }
    }

    /** Receives and acknowledges {@code count} different messages, and what else comes before silence. */
    private static Set<String> values(QueueConsumer<String> consumer, int count) throws Exception {
        Set<String> values = new HashSet<>();
        while (true) {
            Message<String> message = consumer.receive(values.size() < count ? DELIVERY_MAX : QUIET);
            if (message == null) {
                // The client tells acknowledgements in groups; closing it does not wait for them.
                Thread.sleep(QUIET.toMillis());
                return values;
            }
            values.add(message.value());
            consumer.acknowledge(message.id());
        }
    }

    private static Set<String> values(StreamConsumer<String> consumer, int count) throws Exception {
        return new HashSet<>(inOrder(consumer, count));
    }

    private static List<String> inOrder(StreamConsumer<String> consumer, int count) throws Exception {
        List<String> values = new ArrayList<>();
        while (true) {
            Message<String> message = consumer.receive(new HashSet<>(values).size() < count ? DELIVERY_MAX : QUIET);
            if (message == null) {
                return values;
            }
            values.add(message.value());
            consumer.acknowledgeCumulative(message.id());
        }
    }

    private static <T> T answer(CompletableFuture<T> call) throws Exception {
        try {
            return call.get(CALL_SECONDS_MAX, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            if (e.getCause() instanceof PulsarAdminException refusal) {
                throw refusal;
            }
            throw e;
        }
    }

    private static void refused(int status, Call call) throws Exception {
        try {
            call.make();
        } catch (PulsarAdminException e) {
            Failure.unless(e.getStatusCode() == status,
                    "was refused with " + e.getStatusCode() + " instead of " + status + ": " + e.getHttpError());
            Failure.unless(e.getHttpError() != null && !e.getHttpError().isBlank(), "was refused without a reason");
            return;
        }
        throw new Failure("was not refused with " + status);
    }

    private static void expect(Object got, Object wanted, String what) throws Failure {
        Failure.unless(Objects.equals(got, wanted), what + ": " + got + " instead of " + wanted);
    }
}
