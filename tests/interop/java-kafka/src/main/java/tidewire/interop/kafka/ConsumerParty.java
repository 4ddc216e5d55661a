package tidewire.interop.kafka;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionStage;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads records, as a member of a group or not. */
final class ConsumerParty implements Party {
    private final KafkaConsumer<byte[], byte[]> consumer;

    ConsumerParty(Map<String, Object> settings) {
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    @Override
    public CompletionStage<?> play(String call, JsonObject with) {
        return switch (call) {
            case "subscribe" -> {
                consumer.subscribe(Json.strings(with, "topics"));
                yield DONE;
            }
            case "assign" -> {
                assign(with.getAsJsonArray("offsets"));
                yield DONE;
            }
            case "seek" -> {
                consumer.seek(Json.place(with), Json.number(with, "offset"));
                yield DONE;
            }
            case "commit" -> {
                if (Json.has(with, "offsets")) {
                    consumer.commitSync(Json.offsets(with));
                } else {
                    consumer.commitSync();
                }
                yield DONE;
            }
            case "poll" -> Party.done(poll(Json.number(with, "ms")));
            case "assignment" -> Party.done(consumer.assignment().stream().map(Json::place).toList());
            case "position" -> Party.done(consumer.position(Json.place(with)));
            case "begin" -> Party.done(consumer.beginningOffsets(List.of(Json.place(with))).get(Json.place(with)));
            case "end" -> Party.done(consumer.endOffsets(List.of(Json.place(with))).get(Json.place(with)));
            case "offset_at" -> Party.done(offsetAt(Json.place(with), Json.number(with, "timestamp_ms")));
            case "group" -> {
                ConsumerGroupMetadata group = consumer.groupMetadata();
                yield Party.done(Arrays.asList(
                        group.groupId(),
                        group.generationId(),
                        group.memberId(),
                        group.groupInstanceId().orElse(null)));
            }
            default -> throw new IllegalArgumentException(call);
        };
    }

    private void assign(JsonArray offsets) {
        Map<TopicPartition, Long> from = new HashMap<>();
        for (JsonElement each : offsets) {
            from.put(Json.place(each.getAsJsonArray()), each.getAsJsonArray().get(2).getAsLong());
        }
        consumer.assign(from.keySet());
        from.forEach(consumer::seek);
    }

    private List<List<Object>> poll(long ms) {
        List<List<Object>> got = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(ms))) {
            List<List<String>> headers = new ArrayList<>();
            for (Header header : record.headers()) {
                headers.add(Arrays.asList(header.key(), Json.text(header.value())));
            }
            got.add(Arrays.asList(
                    record.topic(),
                    record.partition(),
                    record.offset(),
                    record.timestamp(),
                    Json.text(record.key()),
                    Json.text(record.value()),
                    headers));
        }
        return got;
    }

    private Long offsetAt(TopicPartition place, long timestampMs) {
        OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, timestampMs)).get(place);
        return found == null ? null : found.offset();
    }

    @Override
    public void close() {
        consumer.close();
    }
}
