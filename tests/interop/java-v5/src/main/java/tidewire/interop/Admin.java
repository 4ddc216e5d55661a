package tidewire.interop;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/** The REST calls on scalable topics, each as one exchange; nothing is retried, so every status is the broker's own. */
final class Admin {
    /** One segment as the topic's metadata shows it; both ends of the hash range are inclusive. */
    record Segment(int id, int hashStart, int hashEnd, boolean active, List<Integer> parents, List<Integer> children) {
    }

    record Answer(int status, String body) {
        Answer expect(int wanted, String what) throws Failure {
            Failure.unless(status == wanted, what + " answered " + status + " instead of " + wanted + ": " + body);
            return this;
        }

        JsonObject json() {
            return JsonParser.parseString(body).getAsJsonObject();
        }
    }

    /** HTTP/1.1 as Pulsar's admin clients speak it; by itself this client would first ask to switch to HTTP/2. */
    private final HttpClient http = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(Limits.HTTP_MAX)
            .build();
    private final String root;
    /** Tenant and namespace. */
    private final String namespace;

    /** The calls on topics of the default namespace. */
    Admin(String httpUrl) {
        this(httpUrl, "public/default");
    }

    Admin(String httpUrl, String namespace) {
        this.root = httpUrl.replaceAll("/+$", "") + "/admin/v2/";
        this.namespace = namespace;
    }

    /** Creates the namespace where the broker wants that first; Tidewire has every legal one from the start. */
    void createNamespace() throws IOException, InterruptedException, Failure {
        int status = request("PUT", "namespaces/" + namespace).status();
        Failure.unless(status == 204 || status == 404, "PUT of namespace " + namespace + " answered " + status);
    }

    Answer create(String name, int segments) throws IOException, InterruptedException {
        return exchange("PUT", name + "?numInitialSegments=" + segments);
    }

    Answer metadata(String name) throws IOException, InterruptedException {
        return exchange("GET", name);
    }

    Answer stats(String name) throws IOException, InterruptedException {
        return exchange("GET", name + "/stats");
    }

    Answer split(String name, int segment) throws IOException, InterruptedException {
        return exchange("POST", name + "/split/" + segment);
    }

    Answer merge(String name, int one, int other) throws IOException, InterruptedException {
        return exchange("POST", name + "/merge/" + one + "/" + other);
    }

    /** Makes a scalable topic of the regular one of that name. */
    Answer migrate(String name, boolean force) throws IOException, InterruptedException {
        return exchange("POST", name + "/migrate?force=" + force);
    }

    /** Moves the subscription to the first message published at or after the time. */
    Answer seek(String name, String subscription, long timestampMs) throws IOException, InterruptedException {
        return exchange("POST", name + "/subscriptions/" + subscription + "/seek?timestamp=" + timestampMs);
    }

    Answer skipAll(String name, String subscription) throws IOException, InterruptedException {
        return exchange("POST", name + "/subscriptions/" + subscription + "/skip-all");
    }

    Answer delete(String name) throws IOException, InterruptedException {
        return exchange("DELETE", name + "?force=true");
    }

    /** All segments of the topic, sealed ones too, in the order of their ids. */
    List<Segment> segments(String name) throws IOException, InterruptedException, Failure {
        List<Segment> found = new ArrayList<>();
        JsonObject byId = metadata(name).expect(200, "GET " + name).json().getAsJsonObject("segments");
        for (String id : byId.keySet()) {
            JsonObject segment = byId.getAsJsonObject(id);
            JsonObject range = segment.getAsJsonObject("hashRange");
            found.add(new Segment(
                    segment.get("segmentId").getAsInt(),
                    range.get("start").getAsInt(),
                    range.get("end").getAsInt(),
                    segment.get("state").getAsString().equals("ACTIVE"),
                    ids(segment, "parentIds"),
                    ids(segment, "childIds")));
        }
        found.sort(Comparator.comparingInt(Segment::id));
        return found;
    }

    private static List<Integer> ids(JsonObject segment, String field) {
        List<Integer> ids = new ArrayList<>();
        segment.getAsJsonArray(field).forEach(id -> ids.add(id.getAsInt()));
        return ids;
    }

    private Answer exchange(String method, String path) throws IOException, InterruptedException {
        return request(method, "scalable/" + namespace + "/" + path);
    }

    private Answer request(String method, String path) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(root + path))
                .timeout(Limits.HTTP_MAX)
                .method(method, HttpRequest.BodyPublishers.noBody())
                .build();
        HttpResponse<String> response = http.send(request, HttpResponse.BodyHandlers.ofString());
        return new Answer(response.statusCode(), response.body());
    }
}
