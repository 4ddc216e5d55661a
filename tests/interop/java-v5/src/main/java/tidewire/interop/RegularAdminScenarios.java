package tidewire.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.policies.data.PartitionedTopicInternalStats;
import org.apache.pulsar.common.policies.data.PartitionedTopicStats;
import org.apache.pulsar.common.policies.data.PersistentTopicInternalStats;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.SubscriptionStats;
import org.apache.pulsar.common.policies.data.TopicStats;
import org.apache.pulsar.common.protocol.schema.IsCompatibilityResponse;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaInfoWithVersion;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Plays Pulsar's own client for administrators with regular topics, and the v4 client beside it.
 *
 * <p>Arguments: {@code SERVICE_URL HTTP_URL [SCENARIO...]}. In a cluster, HTTP_URL may be of a broker that owns none of
 * the topics. Prints {@code PASS name} or {@code FAIL name: reason} for each scenario.
 */
public final class RegularAdminScenarios {
    private static final String NAMESPACE = "public/default";
    private static final int QUIET_MS = 400;
    private static final int RECEIVE_SECONDS_MAX = 60;

    /** One story; it fails by throwing. */
    @FunctionalInterface
    private interface Story {
        void play(RegularAdminScenarios stage) throws Exception;
    }

    private final PulsarAdmin admin;
    private final Topics topics;
    private final PulsarClient client;
    private final String topic;

    private RegularAdminScenarios(PulsarAdmin admin, PulsarClient client, String name) {
        this.admin = admin;
        this.topics = admin.topics();
        this.client = client;
        this.topic = "persistent://" + NAMESPACE + "/" + name;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Story> stories = new LinkedHashMap<>();
        stories.put("topic_created_listed_deleted", RegularAdminScenarios::createListDelete);
        stories.put("topic_names", RegularAdminScenarios::names);
        stories.put("topic_refusals", RegularAdminScenarios::refusals);
        stories.put("topic_in_use_deleted_by_force", RegularAdminScenarios::forceDelete);
        stories.put("topic_unloaded_under_clients", RegularAdminScenarios::unload);
        stories.put("topic_retention", RegularAdminScenarios::retention);
        stories.put("partitions_created_extended_deleted", RegularAdminScenarios::partitions);
        stories.put("stats_of_traffic", RegularAdminScenarios::stats);
        stories.put("stats_of_consumers", RegularAdminScenarios::consumerStats);
        stories.put("stats_of_partitions", RegularAdminScenarios::partitionedStats);
        stories.put("internal_stats", RegularAdminScenarios::internalStats);
        stories.put("internal_stats_of_partitions", RegularAdminScenarios::partitionedInternalStats);
        stories.put("subscription_at_its_positions", RegularAdminScenarios::createSubscriptions);
        stories.put("subscription_deleted", RegularAdminScenarios::deleteSubscription);
        stories.put("subscription_on_all_partitions", RegularAdminScenarios::subscriptionOnPartitions);
        stories.put("skip_some", RegularAdminScenarios::skip);
        stories.put("skip_under_a_consumer", RegularAdminScenarios::skipUnderConsumer);
        stories.put("skip_all", RegularAdminScenarios::skipAll);
        stories.put("skip_all_on_partitions", RegularAdminScenarios::skipAllOnPartitions);
        stories.put("expire_by_age", RegularAdminScenarios::expireByAge);
        stories.put("expire_to_a_message", RegularAdminScenarios::expireToMessage);
        stories.put("reset_to_a_time", RegularAdminScenarios::resetToTime);
        stories.put("reset_to_a_message", RegularAdminScenarios::resetToMessage);
        stories.put("reset_into_a_batch", RegularAdminScenarios::resetIntoBatch);
        stories.put("reset_under_a_consumer", RegularAdminScenarios::resetUnderConsumer);
        stories.put("last_message_id", RegularAdminScenarios::lastMessageId);
        stories.put("backlog_in_bytes", RegularAdminScenarios::backlogBytes);
        stories.put("peek_messages", stage -> stage.peeks().peekMessages());
        stories.put("peek_single_messages", stage -> stage.peeks().singleMessages());
        stories.put("schema_versions", stage -> stage.schemaVersions(stage.topic));
        stories.put("schema_versions_of_a_scalable_topic", RegularAdminScenarios::scalableSchemas);
        stories.put("schema_compatibility", RegularAdminScenarios::schemaCompatibility);
        stories.put("schema_of_pairs", RegularAdminScenarios::schemaOfPairs);
        stories.put("schema_of_a_producer", RegularAdminScenarios::schemaOfProducer);
        List<String> chosen = List.of(arguments).subList(2, arguments.length);
        if (!chosen.isEmpty()) {
            stories.keySet().retainAll(chosen);
        }
        String run = UUID.randomUUID().toString().substring(0, 8);
        int failed = 0;
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build();
                PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (Map.Entry<String, Story> entry : stories.entrySet()) {
                try {
                    entry.getValue().play(new RegularAdminScenarios(admin, client, entry.getKey() + "-" + run));
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

    private PeekScenarios peeks() {
        return new PeekScenarios(topics, client, topic);
    }

    private void createListDelete() throws Exception {
        topics.createNonPartitionedTopic(topic);
        has(topics.getList(NAMESPACE).contains(topic), "the list has the topic");
        has(admin.namespaces().getTopics(NAMESPACE).contains(topic), "the namespace's list has the topic");
        expect(topics.getPartitionedTopicMetadata(topic).partitions, 0, "the partitions");
        send(topic, 2);
        topics.delete(topic);
        has(!topics.getList(NAMESPACE).contains(topic), "the topic is gone");
        topics.createNonPartitionedTopic(topic);
        expect(topics.getStats(topic).getMsgInCounter(), 0L, "messages of a topic made anew");
    }

    private void names() throws Exception {
        String odd = topic + "-grüße%2F%é&? a+b";
        topics.createNonPartitionedTopic(odd);
        has(topics.getList(NAMESPACE).contains(odd), "the list has the topic");
        topics.createSubscription(odd, "s", MessageId.earliest);
        send(odd, 1);
        expect(topics.getStats(odd).getSubscriptions().get("s").getMsgBacklog(), 1L, "the backlog");
        topics.delete(odd);
    }

    private void refusals() throws Exception {
        refused(404, () -> topics.getStats(topic));
        refused(404, () -> topics.delete(topic));
        refused(404, () -> topics.getSubscriptions(topic));
        refused(404, () -> topics.createSubscription(topic, "s", MessageId.latest));
        topics.createNonPartitionedTopic(topic);
        refused(409, () -> topics.createNonPartitionedTopic(topic));
        refused(409, () -> topics.createPartitionedTopic(topic, 2));
        refused(404, () -> topics.skipAllMessages(topic, "none"));
        refused(404, () -> topics.deleteSubscription(topic, "none"));
        refused(404, () -> topics.resetCursor(topic, "none", 0));
        refused(404, () -> topics.deletePartitionedTopic(topic));
        refused(501, () -> topics.createNonPartitionedTopic(topic + "-more", Map.of("a", "b")));
        refused(501, () -> admin.topicPolicies().setMessageTTL(topic, 5));
    }

    private void forceDelete() throws Exception {
        try (Consumer<byte[]> consumer = subscribe(topic, "s", SubscriptionType.Exclusive)) {
            refused(412, () -> topics.delete(topic));
            refused(412, () -> topics.deleteSubscription(topic, "s"));
            expect(consumer.isConnected(), true, "the consumer is connected");
            topics.deleteSubscription(topic, "s", true);
            expect(topics.getSubscriptions(topic), List.of(), "the subscriptions");
        }
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.send("a".getBytes(StandardCharsets.UTF_8));
            refused(412, () -> topics.delete(topic));
            topics.delete(topic, true);
        }
    }

    private void unload() throws Exception {
        try (Consumer<byte[]> consumer = subscribe(topic, "s", SubscriptionType.Shared);
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.send("before".getBytes(StandardCharsets.UTF_8));
            topics.unload(topic);
            producer.send("after".getBytes(StandardCharsets.UTF_8));
            Set<String> wanted = Set.of("before", "after");
            expect(Set.copyOf(values(consumer, 2)), wanted, "the messages");
        }
    }

    private void retention() throws Exception {
        topics.createNonPartitionedTopic(topic);
        expect(admin.topicPolicies().getRetention(topic), null, "the retention of a new topic");
        admin.topicPolicies().setRetention(topic, new RetentionPolicies(7, 9));
        expect(admin.topicPolicies().getRetention(topic), new RetentionPolicies(7, 9), "the retention");
        admin.topicPolicies().removeRetention(topic);
        expect(admin.topicPolicies().getRetention(topic), null, "a removed retention");
    }

    private void partitions() throws Exception {
        topics.createPartitionedTopic(topic, 2);
        expect(topics.getPartitionedTopicMetadata(topic).partitions, 2, "the partitions");
        has(topics.getPartitionedTopicList(NAMESPACE).contains(topic), "the list of partitioned topics has it");
        has(topics.getList(NAMESPACE).containsAll(List.of(topic + "-partition-0", topic + "-partition-1")),
                "the list has its partitions");
        topics.updatePartitionedTopic(topic, 4);
        expect(topics.getPartitionedTopicMetadata(topic).partitions, 4, "more partitions");
        refused(409, () -> topics.updatePartitionedTopic(topic, 3));
        send(topic, 8);
        topics.deletePartitionedTopic(topic);
        has(!topics.getPartitionedTopicList(NAMESPACE).contains(topic), "it is gone");
        has(topics.getList(NAMESPACE).stream().noneMatch(name -> name.startsWith(topic)), "its partitions are gone");
    }

    private void stats() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.earliest);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).producerName("p").create()) {
            for (int i = 0; i < 5; i++) {
                producer.send(new byte[100]);
            }
            TopicStats stats = topics.getStats(topic, true, true, true);
            expect(stats.getMsgInCounter(), 5L, "messages in");
            has(stats.getBytesInCounter() > 500, "bytes in: " + stats.getBytesInCounter());
            has(stats.getAverageMsgSize() > 100, "the average size: " + stats.getAverageMsgSize());
            has(stats.getStorageSize() > 500, "the stored size: " + stats.getStorageSize());
            has(stats.getBacklogSize() > 500, "the backlog's size: " + stats.getBacklogSize());
            expect(stats.getPublishers().size(), 1, "producers");
            expect(stats.getPublishers().get(0).getProducerName(), "p", "the producer's name");
            SubscriptionStats counted = stats.getSubscriptions().get("s");
            expect(counted.getMsgBacklog(), 5L, "the backlog");
            long age = System.currentTimeMillis() - counted.getEarliestMsgPublishTimeInBacklog();
            has(age >= 0 && age < 60_000, "the oldest message is this old: " + age);
            expect(counted.getConsumers(), List.of(), "the consumers");
        }
    }

    private void consumerStats() throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").consumerName("c")
                .subscriptionType(SubscriptionType.Shared).receiverQueueSize(7).subscribe()) {
            send(topic, 3);
            Message<byte[]> first = consumer.receive(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            consumer.receive(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            consumer.acknowledgeAsync(first).get(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            SubscriptionStats counted = topics.getStats(topic).getSubscriptions().get("s");
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(RECEIVE_SECONDS_MAX);
            while ((counted.getMsgBacklog() != 2 || counted.getConsumers().get(0).getMsgOutCounter() != 3)
                    && System.nanoTime() < deadline) {
                // The client tells acknowledgements in groups, and the broker sends the third message when it likes.
                Thread.sleep(100);
                counted = topics.getStats(topic).getSubscriptions().get("s");
            }
            expect(counted.getMsgBacklog(), 2L, "the backlog");
            expect(counted.getType(), "Shared", "the type");
            expect(counted.getUnackedMessages(), 2L, "messages that are not acknowledged");
            expect(counted.getConsumers().size(), 1, "the consumers");
            expect(counted.getConsumers().get(0).getConsumerName(), "c", "the consumer's name");
            expect(counted.getConsumers().get(0).getMsgOutCounter(), 3L, "messages out");
            expect(counted.getConsumers().get(0).getUnackedMessages(), 2, "the consumer's own");
            has(counted.getConsumers().get(0).getAvailablePermits() > 0, "the consumer has room");
        }
    }

    private void partitionedStats() throws Exception {
        topics.createPartitionedTopic(topic, 3);
        topics.createSubscription(topic, "s", MessageId.latest);
        send(topic, 12);
        PartitionedTopicStats stats = topics.getPartitionedStats(topic, true);
        expect(stats.getMetadata().partitions, 3, "the partitions");
        expect(stats.getMsgInCounter(), 12L, "messages in");
        expect(stats.getSubscriptions().get("s").getMsgBacklog(), 12L, "the backlog");
        expect(stats.getPartitions().keySet(),
                Set.of(topic + "-partition-0", topic + "-partition-1", topic + "-partition-2"), "the partitions");
        long sum = stats.getPartitions().values().stream()
                .mapToLong(each -> each.getSubscriptions().get("s").getMsgBacklog()).sum();
        expect(sum, 12L, "the sum of the backlogs");
        expect(topics.getPartitionedStats(topic, false).getPartitions(), Map.of(), "partitions that are left out");
    }

    private void internalStats() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.earliest);
        List<MessageIdAdv> ids = new ArrayList<>();
        send(topic, 3).forEach(id -> ids.add((MessageIdAdv) id));
        topics.skipMessages(topic, "s", 1);
        PersistentTopicInternalStats inside = topics.getInternalStats(topic);
        expect(inside.numberOfEntries, 3L, "the entries");
        has(inside.totalSize > 0, "the size: " + inside.totalSize);
        expect(inside.state, "LedgerOpened", "the state");
        expect(inside.ledgers.stream().mapToLong(ledger -> ledger.entries).sum(), 3L, "the entries of the ledgers");
        expect(inside.lastConfirmedEntry, place(ids.get(2)), "the last entry");
        expect(inside.cursors.keySet(), Set.of("s"), "the cursors");
        expect(inside.cursors.get("s").markDeletePosition, place(ids.get(0)), "the cursor's place");
        refused(404, () -> topics.getPartitionedInternalStats(topic));
    }

    private void partitionedInternalStats() throws Exception {
        topics.createPartitionedTopic(topic, 2);
        topics.createSubscription(topic, "s", MessageId.earliest);
        send(topic, 6);
        PartitionedTopicInternalStats inside = topics.getPartitionedInternalStats(topic);
        expect(inside.metadata.partitions, 2, "the partitions");
        expect(inside.partitions.keySet(), Set.of(topic + "-partition-0", topic + "-partition-1"), "the partitions");
        expect(inside.partitions.values().stream().mapToLong(each -> each.numberOfEntries).sum(), 6L, "the entries");
        refused(405, () -> topics.getInternalStats(topic));
    }

    private static String place(MessageIdAdv id) {
        return id.getLedgerId() + ":" + id.getEntryId();
    }

    private void createSubscriptions() throws Exception {
        List<MessageId> ids = send(topic, 4);
        topics.createSubscription(topic, "earliest", MessageId.earliest);
        topics.createSubscription(topic, "latest", MessageId.latest);
        topics.createSubscription(topic, "third", ids.get(2));
        refused(409, () -> topics.createSubscription(topic, "third", ids.get(2)));
        expect(Set.copyOf(topics.getSubscriptions(topic)), Set.of("earliest", "latest", "third"), "the subscriptions");
        send(topic, 1);
        expect(rest("earliest"), List.of("0", "1", "2", "3", "0"), "all");
        expect(rest("third"), List.of("2", "3", "0"), "from the third on");
        expect(rest("latest"), List.of("0"), "what came later");
    }

    private void deleteSubscription() throws Exception {
        topics.createNonPartitionedTopic(topic);
        for (String name : List.of("plain", "grüße %/ß", "a/b", "a+b c", "a%2Fb")) {
            topics.createSubscription(topic, name, MessageId.latest);
            expect(topics.getSubscriptions(topic), List.of(name), "the subscriptions");
            topics.deleteSubscription(topic, name);
            expect(topics.getSubscriptions(topic), List.of(), "the subscriptions");
        }
    }

    private void subscriptionOnPartitions() throws Exception {
        topics.createPartitionedTopic(topic, 3);
        topics.createSubscription(topic, "s", MessageId.earliest);
        refused(409, () -> topics.createSubscription(topic, "s", MessageId.earliest));
        expect(topics.getSubscriptions(topic), List.of("s"), "the subscriptions");
        for (int i = 0; i < 3; i++) {
            expect(topics.getSubscriptions(topic + "-partition-" + i), List.of("s"), "those of a partition");
        }
        topics.deleteSubscription(topic, "s");
        expect(topics.getSubscriptions(topic + "-partition-2"), List.of(), "those of a partition");
        refused(404, () -> topics.deleteSubscription(topic, "s"));
    }

    private void skip() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.earliest);
        send(topic, 5);
        topics.skipMessages(topic, "s", 2);
        expect(backlog("s"), 3L, "the backlog");
        expect(rest("s"), List.of("2", "3", "4"), "the rest");
        topics.skipMessages(topic, "s", 100);
        expect(backlog("s"), 0L, "the backlog");
    }

    private void skipUnderConsumer() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.earliest);
        send(topic, 6);
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).receiverQueueSize(1).subscribe()) {
            Message<byte[]> first = consumer.receive(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            expect(text(first), "0", "the first message");
            topics.skipMessages(topic, "s", 4);
            consumer.acknowledge(first);
            List<String> got = values(consumer, 2);
            has(got.containsAll(List.of("4", "5")) && !got.contains("3"), "what is left: " + got);
        }
        expect(backlog("s"), 0L, "the backlog");
    }

    private void skipAll() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.earliest);
        topics.createSubscription(topic, "other", MessageId.earliest);
        send(topic, 5);
        topics.skipAllMessages(topic, "s");
        expect(backlog("s"), 0L, "the backlog");
        expect(backlog("other"), 5L, "another backlog");
        send(topic, 1);
        expect(rest("s"), List.of("0"), "what came later");
    }

    private void skipAllOnPartitions() throws Exception {
        topics.createPartitionedTopic(topic, 3);
        topics.createSubscription(topic, "s", MessageId.earliest);
        send(topic, 9);
        expect(topics.getPartitionedStats(topic, false).getSubscriptions().get("s").getMsgBacklog(), 9L, "the backlog");
        refused(405, () -> topics.skipMessages(topic, "s", 1));
        topics.skipAllMessages(topic, "s");
        expect(topics.getPartitionedStats(topic, false).getSubscriptions().get("s").getMsgBacklog(), 0L, "the backlog");
        topics.resetCursor(topic, "s", 0);
        expect(topics.getPartitionedStats(topic, false).getSubscriptions().get("s").getMsgBacklog(), 9L, "the backlog");
    }

    private void expireByAge() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.earliest);
        topics.createSubscription(topic, "other", MessageId.earliest);
        send(topic, 3);
        topics.expireMessages(topic, "s", 3600);
        expect(backlog("s"), 3L, "the backlog of young messages");
        long one;
        long another;
        long sent;
        do {
            // What was sent is old. If the rest takes so long that the next message gets old too, it has another turn.
            Thread.sleep(2100);
            sent = System.nanoTime();
            send(topic, 1);
            topics.expireMessages(topic, "s", 2);
            one = backlog("s");
            topics.expireMessagesForAllSubscriptions(topic, 2);
            another = backlog("other");
        } while (System.nanoTime() - sent > TimeUnit.SECONDS.toNanos(2));
        expect(one, 1L, "the backlog of one young message");
        expect(another, 1L, "another backlog");
    }

    private void expireToMessage() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.earliest);
        List<MessageId> ids = send(topic, 5);
        topics.expireMessages(topic, "s", ids.get(1), false);
        expect(backlog("s"), 3L, "the backlog behind the second");
        topics.expireMessages(topic, "s", ids.get(3), true);
        expect(rest("s"), List.of("3", "4"), "from the fourth on");
    }

    private void resetToTime() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.earliest);
        send(topic, 2);
        Thread.sleep(50);
        long between = System.currentTimeMillis();
        Thread.sleep(50);
        send(topic, 3);
        topics.skipAllMessages(topic, "s");
        topics.resetCursor(topic, "s", between);
        expect(backlog("s"), 3L, "the backlog from a time on");
        topics.resetCursor(topic, "s", 0);
        expect(backlog("s"), 5L, "the whole backlog");
        topics.resetCursor(topic, "s", System.currentTimeMillis() + 1000);
        expect(backlog("s"), 0L, "the backlog of the future");
    }

    private void resetToMessage() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.latest);
        List<MessageId> ids = send(topic, 5);
        topics.skipAllMessages(topic, "s");
        topics.resetCursor(topic, "s", ids.get(1), true);
        expect(backlog("s"), 3L, "the backlog behind the second");
        topics.resetCursor(topic, "s", ids.get(1));
        expect(rest("s"), List.of("1", "2", "3", "4"), "from the second on");
        topics.resetCursor(topic, "s", MessageId.earliest);
        expect(backlog("s"), 5L, "the whole backlog");
        topics.resetCursor(topic, "s", MessageId.latest);
        expect(backlog("s"), 0L, "no backlog");
    }

    private void resetIntoBatch() throws Exception {
        topics.createNonPartitionedTopic(topic);
        topics.createSubscription(topic, "s", MessageId.latest);
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(true)
                .batchingMaxMessages(4).batchingMaxPublishDelay(10, TimeUnit.SECONDS).create()) {
            List<java.util.concurrent.CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                sent.add(producer.sendAsync(Integer.toString(i).getBytes(StandardCharsets.UTF_8)));
            }
            for (java.util.concurrent.CompletableFuture<MessageId> each : sent) {
                ids.add(each.get(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS));
            }
        }
        topics.skipAllMessages(topic, "s");
        topics.resetCursor(topic, "s", ids.get(2));
        expect(rest("s"), List.of("2", "3"), "from the third of the batch on");
        topics.resetCursor(topic, "s", ids.get(2), true);
        expect(rest("s"), List.of("3"), "behind the third of the batch");
        topics.resetCursor(topic, "s", ids.get(0));
        expect(rest("s"), List.of("0", "1", "2", "3"), "the whole batch");
        expect(topics.getLastMessageId(topic), ids.get(3), "the last message");
    }

    private void resetUnderConsumer() throws Exception {
        List<MessageId> ids = send(topic, 4);
        try (Consumer<byte[]> consumer = subscribe(topic, "s", SubscriptionType.Exclusive)) {
            expect(values(consumer, 4), List.of("0", "1", "2", "3"), "all");
            topics.resetCursor(topic, "s", ids.get(2));
            expect(values(consumer, 2), List.of("2", "3"), "again from the third on");
        }
    }

    private void lastMessageId() throws Exception {
        topics.createNonPartitionedTopic(topic);
        expect(topics.getLastMessageId(topic), MessageId.earliest, "that of an empty topic");
        List<MessageId> ids = send(topic, 3);
        expect(topics.getLastMessageId(topic), ids.get(2), "that of three messages");
        topics.createPartitionedTopic(topic + "-split", 2);
        refused(405, () -> topics.getLastMessageId(topic + "-split"));
    }

    private void backlogBytes() throws Exception {
        List<MessageId> ids = send(topic, 3);
        long all = topics.getBacklogSizeByMessageId(topic, ids.get(0));
        has(all > 0, "the bytes of all: " + all);
        has(topics.getBacklogSizeByMessageId(topic, MessageId.earliest) >= all, "the bytes from the beginning");
        expect(topics.getBacklogSizeByMessageId(topic, MessageId.latest), 0L, "the bytes of nothing");
    }

    /** A record as the first producer knows it. */
    public static final class Person {
        public String name;
    }

    /** The same record with one more field, which older readers pass over. */
    public static final class Worker {
        public String name;
        public Integer salary;
    }

    private static SchemaInfo person(Class<?> kind) {
        // Both have one name, so that one is the next version of the other.
        String definition = Schema.AVRO(kind).getSchemaInfo().getSchemaDefinition()
                .replace(kind.getSimpleName(), "Person");
        return SchemaInfo.builder().name("person").type(SchemaType.AVRO)
                .schema(definition.getBytes(StandardCharsets.UTF_8)).properties(Map.of("k", "v")).build();
    }

    private void schemaVersions(String of) throws Exception {
        SchemaInfo first = person(Person.class);
        SchemaInfo second = person(Worker.class);
        refused(404, () -> admin.schemas().getSchemaInfo(of));
        admin.schemas().createSchema(of, first);
        admin.schemas().createSchema(of, second);
        SchemaInfoWithVersion latest = admin.schemas().getSchemaInfoWithVersion(of);
        expect(latest.getVersion(), 1L, "the latest version");
        expect(latest.getSchemaInfo().getSchemaDefinition(), second.getSchemaDefinition(), "the latest definition");
        expect(latest.getSchemaInfo().getType(), SchemaType.AVRO, "the type");
        expect(latest.getSchemaInfo().getProperties(), Map.of("k", "v"), "the properties");
        expect(admin.schemas().getSchemaInfo(of, 0).getSchemaDefinition(), first.getSchemaDefinition(), "the first");
        expect(admin.schemas().getAllSchemas(of).size(), 2, "the versions");
        expect(admin.schemas().getVersionBySchema(of, first), 0L, "the version of the first");
        admin.schemas().deleteSchema(of);
        refused(404, () -> admin.schemas().getSchemaInfo(of));
        expect(admin.schemas().getAllSchemas(of), List.of(), "the versions that are left");
        expect(admin.schemas().getSchemaInfo(of, 1).getSchemaDefinition(), second.getSchemaDefinition(), "the second");
        admin.schemas().createSchema(of, Schema.STRING.getSchemaInfo());
        expect(admin.schemas().getSchemaInfo(of).getType(), SchemaType.STRING, "the type of what came later");
    }

    private void scalableSchemas() throws Exception {
        String scalable = topic.replace("persistent://", "topic://");
        admin.scalableTopics().createScalableTopic(scalable, 2);
        schemaVersions(topic);
        expect(topics.getList(NAMESPACE).contains(topic), false, "there is a regular topic of the name");
    }

    private void schemaCompatibility() throws Exception {
        topics.createNonPartitionedTopic(topic);
        admin.schemas().createSchema(topic, person(Person.class));
        IsCompatibilityResponse told = admin.schemas().testCompatibility(topic, person(Worker.class));
        expect(told.isCompatibility(), true, "a further field is compatible");
        expect(told.getSchemaCompatibilityStrategy(), "FULL_TRANSITIVE", "the strategy");
        expect(admin.schemas().testCompatibility(topic, Schema.STRING.getSchemaInfo()).isCompatibility(), false,
                "another type is compatible");
        refused(409, () -> admin.schemas().createSchema(topic, Schema.STRING.getSchemaInfo()));
    }

    private void schemaOfPairs() throws Exception {
        SchemaInfo pairs = Schema.KeyValue(Schema.STRING, Schema.AVRO(Person.class)).getSchemaInfo();
        admin.schemas().createSchema(topic, pairs);
        SchemaInfo found = admin.schemas().getSchemaInfo(topic);
        expect(found.getType(), SchemaType.KEY_VALUE, "the type");
        expect(found.getProperties(), pairs.getProperties(), "the properties");
        expect(admin.schemas().getVersionBySchema(topic, pairs), 0L, "the version of the pair");
        try (Producer<KeyValue<String, Person>> producer =
                client.newProducer(Schema.KeyValue(Schema.STRING, Schema.AVRO(Person.class))).topic(topic).create()) {
            Person person = new Person();
            person.name = "a";
            producer.send(new KeyValue<>("k", person));
        }
        expect(admin.schemas().getAllSchemas(topic).size(), 1, "the versions");
    }

    private void schemaOfProducer() throws Exception {
        Person person = new Person();
        person.name = "a";
        try (Producer<Person> producer = client.newProducer(Schema.AVRO(Person.class)).topic(topic).create()) {
            producer.send(person);
            expect(admin.schemas().getSchemaInfo(topic).getSchemaDefinition(),
                    Schema.AVRO(Person.class).getSchemaInfo().getSchemaDefinition(), "the producer's schema");
            admin.schemas().deleteSchema(topic);
        }
        // The message names a version that was deleted, and stays readable.
        try (Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Message<GenericRecord> message = consumer.receive(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            expect(message.getValue().getField("name"), "a", "the field of a stored message");
        }
    }

    // What the stories share.

    /** Sends the texts 0, 1, 2 ... one by one, and returns their ids. */
    private List<MessageId> send(String to, int count) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(to).enableBatching(false).create()) {
            for (int i = 0; i < count; i++) {
                ids.add(producer.send(Integer.toString(i).getBytes(StandardCharsets.UTF_8)));
            }
        }
        return ids;
    }

    private Consumer<byte[]> subscribe(String to, String subscription, SubscriptionType type) throws Exception {
        return client.newConsumer(Schema.BYTES).topic(to).subscriptionName(subscription).subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscribe();
    }

    private long backlog(String subscription) throws Exception {
        return topics.getStats(topic).getSubscriptions().get(subscription).getMsgBacklog();
    }

    /** What a new consumer of the subscription gets and acknowledges. */
    private List<String> rest(String subscription) throws Exception {
        try (Consumer<byte[]> consumer = subscribe(topic, subscription, SubscriptionType.Exclusive)) {
            return values(consumer, Math.toIntExact(backlog(subscription)));
        }
    }

    /** Receives and acknowledges at least so many messages, and what else comes before silence. */
    private static List<String> values(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> values = new ArrayList<>();
        while (true) {
            Message<byte[]> message = values.size() < count
                    ? consumer.receive(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS)
                    : consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                return values;
            }
            values.add(text(message));
            consumer.acknowledge(message);
        }
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getValue(), StandardCharsets.UTF_8);
    }

    private static void refused(int status, Expect.Step call) throws Exception {
        try {
            call.run();
        } catch (PulsarAdminException e) {
            Failure.unless(e.getStatusCode() == status,
                    "was refused with " + e.getStatusCode() + " instead of " + status + ": " + e.getHttpError());
            Failure.unless(e.getHttpError() != null && !e.getHttpError().isBlank(), "was refused without a reason");
            return;
        }
        throw new Failure("was not refused with " + status);
    }

    private static void has(boolean holds, String what) throws Failure {
        Failure.unless(holds, what);
    }

    private static void expect(Object got, Object wanted, String what) throws Failure {
        Expect.equal(what, got, wanted);
    }
}
