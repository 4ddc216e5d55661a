package tidewire.interop.kafka;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.protocol.Errors;

/**
 * Kafka's own Java client, as a program that others tell what to do.
 *
 * <p>Each line of the input is a call, and each line of the output is the answer to one, in any order:
 *
 * <pre>
 * {"id": 1, "party": 1, "call": "open", "with": {"kind": "producer", "settings": {"bootstrap.servers": "..."}}}
 * {"id": 2, "party": 1, "call": "send", "with": {"topic": "orders", "value": "YQ=="}}
 * {"id": 3, "party": 1, "call": "close", "with": {}}
 *
 * {"id": 1, "result": null}
 * {"id": 2, "result": [0, 17]}                         bytes are in base64, on both sides
 * {"id": 3, "refused": [6, "the client's text"]}       Kafka's code of the client's exception, or -1
 * {"id": 3, "broken": "this program's own exception"}
 * </pre>
 *
 * <p>A party's calls are made one after the other, and parties play side by side. When the input ends, this process
 * ends at once, as if it were killed: members do not leave their groups, and open transactions stay open.
 */
public final class Main {
    private final Gson gson = new GsonBuilder().serializeNulls().create();
    private final PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private final Map<Long, Seat> seats = new HashMap<>();

    /** Where a party sits: its thread, and itself once it is open. */
    private static final class Seat {
        private final ExecutorService thread = Executors.newSingleThreadExecutor();
        private Party party;
    }

    public static void main(String[] arguments) {
        int status = 1;
        try {
            new Main().run(new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)));
            status = 0;
        } catch (IOException | RuntimeException problem) {
            problem.printStackTrace();
        }
        Runtime.getRuntime().halt(status);
    }

    private void run(BufferedReader input) throws IOException {
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonObject asked = JsonParser.parseString(line).getAsJsonObject();
            long id = asked.get("id").getAsLong();
            long number = asked.get("party").getAsLong();
            String call = asked.get("call").getAsString();
            JsonObject with = asked.getAsJsonObject("with");
            switch (call) {
                case "open" -> {
                    Seat seat = new Seat();
                    seats.put(number, seat);
                    seat.thread.execute(() -> answered(id, () -> {
                        seat.party = open(with);
                        return Party.DONE;
                    }));
                }
                case "close" -> {
                    Seat seat = seats.remove(number);
                    seat.thread.execute(() -> answered(id, () -> {
                        seat.party.close();
                        return Party.DONE;
                    }));
                    seat.thread.shutdown();
                }
                default -> {
                    Seat seat = seats.get(number);
                    seat.thread.execute(() -> answered(id, () -> seat.party.play(call, with)));
                }
            }
        }
    }

    private static Party open(JsonObject with) {
        Map<String, Object> settings = new HashMap<>();
        with.getAsJsonObject("settings").asMap().forEach((name, value) -> settings.put(name, value.getAsString()));
        return switch (with.get("kind").getAsString()) {
            case "producer" -> new ProducerParty(settings);
            case "consumer" -> new ConsumerParty(settings);
            case "admin" -> new AdminParty(settings);
            case "inspector" -> new InspectorParty(settings);
            default -> throw new IllegalArgumentException(with.toString());
        };
    }

    private interface Call {
        CompletionStage<?> make() throws Exception;
    }

    private void answered(long id, Call call) {
        try {
            call.make().whenComplete((result, problem) -> {
                if (problem == null) {
                    answer(id, "result", result);
                } else {
                    answerProblem(id, problem);
                }
            });
        } catch (Exception problem) {
            answerProblem(id, problem);
        }
    }

    private void answerProblem(long id, Throwable problem) {
        Throwable first = problem instanceof CompletionException ? problem.getCause() : problem;
        if (!(first instanceof KafkaException)) {
            first.printStackTrace();
            answer(id, "broken", first.toString());
            return;
        }
        // An exception without a code may have a cause that has one.
        Errors error = Errors.UNKNOWN_SERVER_ERROR;
        for (Throwable each = first; each != null && error == Errors.UNKNOWN_SERVER_ERROR; each = each.getCause()) {
            error = Errors.forException(each);
        }
        answer(id, "refused", new Object[] {error.code(), first.toString()});
    }

    private void answer(long id, String kind, Object what) {
        JsonObject line = new JsonObject();
        line.addProperty("id", id);
        line.add(kind, gson.toJsonTree(what));
        synchronized (output) {
            output.println(gson.toJson(line));
            output.flush();
        }
    }
}
