package tidewire.interop.kafka;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** What the calls and answers have in common. Bytes are in base64, and partitions are {@code [topic, number]}. */
final class Json {
    private Json() {}

    static String string(JsonObject with, String name) {
        return with.get(name).getAsString();
    }

    static long number(JsonObject with, String name) {
        return with.get(name).getAsLong();
    }

    static boolean has(JsonObject with, String name) {
        return with.has(name) && !with.get(name).isJsonNull();
    }

    static byte[] bytes(JsonElement element) {
        return element == null || element.isJsonNull() ? null : Base64.getDecoder().decode(element.getAsString());
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    static List<String> strings(JsonObject with, String name) {
        List<String> found = new ArrayList<>();
        with.getAsJsonArray(name).forEach(each -> found.add(each.getAsString()));
        return found;
    }

    static TopicPartition place(JsonArray place) {
        return new TopicPartition(place.get(0).getAsString(), place.get(1).getAsInt());
    }

    static TopicPartition place(JsonObject with) {
        return place(with.getAsJsonArray("place"));
    }

    static List<Object> place(TopicPartition place) {
        return List.of(place.topic(), place.partition());
    }

    /** Of {@code [[topic, number, offset, metadata], ...]}. */
    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonObject with) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        for (JsonElement each : with.getAsJsonArray("offsets")) {
            JsonArray one = each.getAsJsonArray();
            found.put(place(one), new OffsetAndMetadata(one.get(2).getAsLong(), one.get(3).getAsString()));
        }
        return found;
    }
}
