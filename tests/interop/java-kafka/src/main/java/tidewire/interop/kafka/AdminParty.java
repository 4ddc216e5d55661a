package tidewire.interop.kafka;

import com.google.gson.JsonObject;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionStage;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Administers topics, their settings and groups. */
final class AdminParty implements Party {
    private final Admin admin;

    AdminParty(Map<String, Object> settings) {
        admin = Admin.create(settings);
    }

    @Override
    public CompletionStage<?> play(String call, JsonObject with) {
        return switch (call) {
            case "create" -> admin.createTopics(List.of(new NewTopic(
                            Json.string(with, "topic"), with.get("partitions").getAsInt(), (short) 1)))
                    .all()
                    .toCompletionStage();
            case "delete" -> admin.deleteTopics(List.of(Json.string(with, "topic"))).all().toCompletionStage();
            case "grow" -> admin.createPartitions(Map.of(
                            Json.string(with, "topic"),
                            NewPartitions.increaseTo(with.get("partitions").getAsInt())))
                    .all()
                    .toCompletionStage();
            case "topics" -> topics();
            case "groups" -> admin.listConsumerGroups().all().toCompletionStage().thenApply(listed ->
                    listed.stream().map(ConsumerGroupListing::groupId).toList());
            case "describe" -> describe(Json.string(with, "group"));
            case "committed" -> committed(Json.string(with, "group"));
            case "delete_group" -> admin.deleteConsumerGroups(List.of(Json.string(with, "group")))
                    .all()
                    .toCompletionStage();
            case "configs" -> configs(Json.string(with, "topic"));
            case "set_config" -> setConfig(with);
            case "delete_records" -> deleteRecords(Json.place(with), Json.number(with, "offset"));
            case "offset_of" -> offsetOf(Json.place(with), Json.string(with, "spec"));
            case "move_group" -> admin.alterConsumerGroupOffsets(Json.string(with, "group"), Json.offsets(with))
                    .all()
                    .toCompletionStage();
            default -> throw new IllegalArgumentException(call);
        };
    }

    private CompletionStage<?> topics() {
        return admin.listTopics()
                .names()
                .toCompletionStage()
                .thenCompose(names -> admin.describeTopics(names).allTopicNames().toCompletionStage())
                .thenApply(topics -> {
                    Map<String, Integer> partitions = new HashMap<>();
                    topics.forEach((name, topic) -> partitions.put(name, topic.partitions().size()));
                    return partitions;
                });
    }

    private CompletionStage<?> describe(String group) {
        return admin.describeConsumerGroups(List.of(group))
                .describedGroups()
                .get(group)
                .toCompletionStage()
                .thenApply(described -> List.of(
                        described.state().toString(),
                        Arrays.asList(described.members().stream()
                                .map(member -> member.groupInstanceId().orElse(null))
                                .toArray())));
    }

    private CompletionStage<?> committed(String group) {
        return admin.listConsumerGroupOffsets(group)
                .partitionsToOffsetAndMetadata()
                .toCompletionStage()
                .thenApply(offsets -> {
                    List<List<Object>> found = new ArrayList<>();
                    offsets.forEach((place, one) -> {
                        if (one != null) {
                            found.add(List.of(place.topic(), place.partition(), one.offset(), one.metadata()));
                        }
                    });
                    return found;
                });
    }

    private CompletionStage<?> configs(String topic) {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return admin.describeConfigs(List.of(resource)).all().toCompletionStage().thenApply(described -> {
            Map<String, String> found = new HashMap<>();
            described.get(resource).entries().forEach(entry -> found.put(entry.name(), entry.value()));
            return found;
        });
    }

    private CompletionStage<?> setConfig(JsonObject with) {
        String name = Json.string(with, "name");
        AlterConfigOp change =
                new AlterConfigOp(new ConfigEntry(name, Json.string(with, "value")), AlterConfigOp.OpType.SET);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, Json.string(with, "topic"));
        return admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().toCompletionStage();
    }

    private CompletionStage<?> deleteRecords(TopicPartition place, long offset) {
        return admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(offset)))
                .lowWatermarks()
                .get(place)
                .toCompletionStage()
                .thenApply(deleted -> deleted.lowWatermark());
    }

    private CompletionStage<?> offsetOf(TopicPartition place, String spec) {
        OffsetSpec which = switch (spec) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max-timestamp" -> OffsetSpec.maxTimestamp();
            default -> throw new IllegalArgumentException(spec);
        };
        return admin.listOffsets(Map.of(place, which)).partitionResult(place).toCompletionStage()
                .thenApply(found -> found.offset());
    }

    @Override
    public void close() {
        // Every call has its answer. Without a limit, closing takes a second.
        admin.close(Duration.ZERO);
    }
}
