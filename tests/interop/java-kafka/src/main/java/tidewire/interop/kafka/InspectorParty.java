package tidewire.interop.kafka;

import com.google.gson.JsonObject;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletionStage;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;

/** Looks into partitions, transactions and groups, and puts them right by hand (KIP-496, KIP-664, KIP-699). */
final class InspectorParty implements Party {
    private final Admin admin;

    InspectorParty(Map<String, Object> settings) {
        admin = Admin.create(settings);
    }

    @Override
    public CompletionStage<?> play(String call, JsonObject with) {
        return switch (call) {
            case "producers" -> producers(Json.place(with));
            case "transactions" -> admin.listTransactions().all().toCompletionStage().thenApply(listed -> {
                Map<String, String> states = new HashMap<>();
                listed.forEach(each -> states.put(each.transactionalId(), each.state().toString()));
                return states;
            });
            case "transaction" -> transaction(Json.string(with, "transactional_id"));
            case "abort_transaction" -> admin.abortTransaction(new AbortTransactionSpec(
                            Json.place(with),
                            Json.number(with, "producer_id"),
                            with.get("epoch").getAsShort(),
                            with.get("coordinator_epoch").getAsInt()))
                    .all()
                    .toCompletionStage();
            case "fence" -> admin.fenceProducers(List.of(Json.string(with, "transactional_id")))
                    .all()
                    .toCompletionStage();
            case "log_dirs" -> logDirs();
            case "delete_offset" -> admin.deleteConsumerGroupOffsets(
                            Json.string(with, "group"), Set.of(Json.place(with)))
                    .all()
                    .toCompletionStage();
            case "remove_member" -> admin.removeMembersFromConsumerGroup(
                            Json.string(with, "group"),
                            new RemoveMembersFromConsumerGroupOptions(
                                    List.of(new MemberToRemove(Json.string(with, "instance_id")))))
                    .all()
                    .toCompletionStage();
            default -> throw new IllegalArgumentException(call);
        };
    }

    private CompletionStage<?> producers(TopicPartition place) {
        return admin.describeProducers(List.of(place)).partitionResult(place).toCompletionStage()
                .thenApply(found -> {
                    List<List<Long>> active = new ArrayList<>();
                    found.activeProducers().forEach(each -> active.add(List.of(
                            each.producerId(),
                            (long) each.producerEpoch(),
                            (long) each.coordinatorEpoch().orElse(-1),
                            each.currentTransactionStartOffset().orElse(-1))));
                    return active;
                });
    }

    private CompletionStage<?> transaction(String id) {
        return admin.describeTransactions(List.of(id)).description(id).toCompletionStage().thenApply(found -> {
            List<Object> described = new ArrayList<>();
            described.add(found.state().toString());
            described.add(found.producerId());
            described.add(found.producerEpoch());
            described.add(found.topicPartitions().stream().map(Json::place).toList());
            return described;
        });
    }

    private CompletionStage<?> logDirs() {
        return admin.describeCluster().nodes().toCompletionStage()
                .thenCompose(nodes -> admin.describeLogDirs(nodes.stream().map(Node::id).toList())
                        .allDescriptions()
                        .toCompletionStage())
                .thenApply(brokers -> {
                    List<List<Object>> sizes = new ArrayList<>();
                    brokers.values().forEach(folders -> new TreeMap<>(folders).values().forEach(folder ->
                            folder.replicaInfos().forEach((place, replica) ->
                                    sizes.add(List.of(place.topic(), place.partition(), replica.size())))));
                    return sizes;
                });
    }

    @Override
    public void close() {
        // Every call has its answer. Without a limit, closing takes a second.
        admin.close(Duration.ZERO);
    }
}
