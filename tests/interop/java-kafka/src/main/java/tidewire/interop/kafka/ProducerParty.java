package tidewire.interop.kafka;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends records, in transactions or not. */
final class ProducerParty implements Party {
    private static final Duration CLOSE_MAX = Duration.ofSeconds(10);

    private final KafkaProducer<byte[], byte[]> producer;

    ProducerParty(Map<String, Object> settings) {
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    @Override
    public CompletionStage<?> play(String call, JsonObject with) {
        switch (call) {
            case "send" -> {
                return send(with);
            }
            case "flush" -> producer.flush();
            case "init_transactions" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "send_offsets" -> producer.sendOffsetsToTransaction(Json.offsets(with), group(with));
            default -> throw new IllegalArgumentException(call);
        }
        return DONE;
    }

    private CompletionStage<?> send(JsonObject with) {
        List<Header> headers = new ArrayList<>();
        for (JsonElement each : with.getAsJsonArray("headers")) {
            JsonArray header = each.getAsJsonArray();
            headers.add(new RecordHeader(header.get(0).getAsString(), Json.bytes(header.get(1))));
        }
        CompletableFuture<List<Long>> stored = new CompletableFuture<>();
        producer.send(
                new ProducerRecord<>(
                        Json.string(with, "topic"),
                        Json.has(with, "partition") ? with.get("partition").getAsInt() : null,
                        Json.has(with, "timestamp_ms") ? with.get("timestamp_ms").getAsLong() : null,
                        Json.bytes(with.get("key")),
                        Json.bytes(with.get("value")),
                        headers),
                (metadata, problem) -> {
                    if (problem == null) {
                        stored.complete(List.of((long) metadata.partition(), metadata.offset()));
                    } else {
                        stored.completeExceptionally(problem);
                    }
                });
        return stored;
    }

    private static ConsumerGroupMetadata group(JsonObject with) {
        JsonArray group = with.getAsJsonArray("group");
        JsonElement instance = group.get(3);
        return new ConsumerGroupMetadata(
                group.get(0).getAsString(),
                group.get(1).getAsInt(),
                group.get(2).getAsString(),
                instance.isJsonNull() ? Optional.empty() : Optional.of(instance.getAsString()));
    }

    @Override
    public void close() {
        producer.close(CLOSE_MAX);
    }
}
