package tidewire.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;

/**
 * Plays scenarios of the Java v5 client against a broker.
 *
 * <p>Arguments: {@code SERVICE_URL HTTP_URL [--restarts] [SCENARIO...]}, or {@code --list}. With {@code --restarts} it
 * also plays those that have the broker killed, see {@link Operator}, and with {@code --cluster} those that need
 * several brokers. For each scenario it prints
 * {@code PASS name} or {@code FAIL name: reason}, at the end {@code N passed, N failed}; the exit status is 0 only when
 * all passed, 1 when one failed, 2 when the arguments make no sense.
 *
 * <p>Several scenarios are played at once, each on topics of its own, since most of their time goes into waiting for
 * what must not come; those that have the broker killed come last, one by one. The lines keep the list's order.
 */
public final class Main {
    private static final int REASON_CHARACTERS_MAX = 400;
    private static final int AT_ONCE = 4;

    private Main() {
    }

    public static void main(String[] arguments) throws InterruptedException {
        List<String> rest = new ArrayList<>(Arrays.asList(arguments));
        boolean listing = rest.remove("--list");
        boolean cluster = rest.remove("--cluster");
        boolean restarts = rest.remove("--restarts") || listing;
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        MessageScenarios.addTo(scenarios);
        SchemaScenarios.addTo(scenarios);
        ConsumerScenarios.addTo(scenarios);
        SharingScenarios.addTo(scenarios);
        RedeliveryScenarios.addTo(scenarios);
        CheckpointScenarios.addTo(scenarios);
        SeekScenarios.addTo(scenarios);
        NamespaceScenarios.addTo(scenarios);
        SplitScenarios.addTo(scenarios);
        MergeScenarios.addTo(scenarios);
        TransactionScenarios.addTo(scenarios);
        ProcessingScenarios.addTo(scenarios);
        AcknowledgementScenarios.addTo(scenarios);
        RegularTopicScenarios.addTo(scenarios);
        RegularSeekScenarios.addTo(scenarios);
        RefusalScenarios.addTo(scenarios);
        Set<String> together = Set.copyOf(scenarios.keySet());
        Operator operator = new Operator();
        if (cluster) {
            ClusterScenarios.addTo(scenarios, operator);
        }
        if (restarts) {
            RestartScenarios.addTo(scenarios, operator);
        }
        if (listing) {
            scenarios.keySet().forEach(System.out::println);
            return;
        }
        if (rest.size() < 2) {
            System.err.println("usage: Main SERVICE_URL HTTP_URL [--cluster] [--restarts] [SCENARIO...] | --list");
            System.exit(2);
        }
        List<String> chosen = rest.subList(2, rest.size());
        for (String name : chosen) {
            if (!scenarios.containsKey(name)) {
                System.err.println("unknown scenario: " + name);
                System.exit(2);
            }
        }
        if (!chosen.isEmpty()) {
            scenarios.keySet().retainAll(chosen);
        }
        System.exit(play(rest.get(0), rest.get(1), scenarios, together) ? 0 : 1);
    }

    private static boolean play(
            String serviceUrl, String httpUrl, Map<String, Scenario> scenarios, Set<String> together)
            throws InterruptedException {
        // Topics of earlier runs against the same broker must not be met again.
        String run = UUID.randomUUID().toString().substring(0, 8);
        PulsarClient client;
        try {
            client = Stage.connect(serviceUrl, Limits.TRANSACTION_TIMEOUT);
        } catch (PulsarClientException e) {
            e.printStackTrace();
            scenarios.keySet().forEach(name -> System.out.println("FAIL " + name + ": no client, " + oneLine(e)));
            System.out.println("0 passed, " + scenarios.size() + " failed");
            return false;
        }
        ExecutorService players = Executors.newFixedThreadPool(AT_ONCE);
        Map<String, FutureTask<String>> playing = new LinkedHashMap<>();
        scenarios.forEach((name, scenario) -> {
            Stage stage = new Stage(client, serviceUrl, httpUrl, name + "-" + run);
            FutureTask<String> task = new FutureTask<>(() -> play(name, scenario, stage));
            playing.put(name, task);
            if (together.contains(name)) {
                players.execute(task);
            }
        });
        int failed = 0;
        for (Map.Entry<String, FutureTask<String>> entry : playing.entrySet()) {
            if (!together.contains(entry.getKey())) {
                // All others are over, as their lines come first.
                entry.getValue().run();
            }
            String reason = resultOf(entry.getValue());
            if (reason == null) {
                System.out.println("PASS " + entry.getKey());
            } else {
                failed++;
                System.out.println("FAIL " + entry.getKey() + ": " + reason);
            }
            System.out.flush();
        }
        players.shutdown();
        System.out.println((scenarios.size() - failed) + " passed, " + failed + " failed");
        System.out.flush();
        return failed == 0;
    }

    private static String resultOf(Future<String> playing) throws InterruptedException {
        try {
            return playing.get();
        } catch (ExecutionException e) {
            return oneLine(e.getCause());
        }
    }

    private static String play(String name, Scenario scenario, Stage stage) throws InterruptedException {
        long startedNanos = System.nanoTime();
        String reason = play(scenario, stage);
        System.err.printf("%s took %d ms%n", name, (System.nanoTime() - startedNanos) / 1_000_000);
        return reason;
    }

    /** Returns null when the scenario passed, else the reason in one line. */
    private static String play(Scenario scenario, Stage stage) throws InterruptedException {
        FutureTask<Void> task = new FutureTask<>(() -> {
            try (stage) {
                scenario.play(stage);
            }
            return null;
        });
        // Its own daemon thread, so that a scenario that hangs in the client can be left behind.
        Thread thread = new Thread(task, stage.name);
        thread.setDaemon(true);
        thread.start();
        try {
            task.get(Limits.SCENARIO_MAX.toMillis(), TimeUnit.MILLISECONDS);
            return null;
        } catch (ExecutionException e) {
            e.getCause().printStackTrace();
            return oneLine(e.getCause());
        } catch (TimeoutException e) {
            String where = Arrays.stream(thread.getStackTrace())
                    .filter(frame -> frame.getClassName().startsWith("tidewire."))
                    .findFirst().map(StackTraceElement::toString).orElse("nowhere of ours");
            thread.interrupt();
            return "not finished after " + Limits.SCENARIO_MAX.toSeconds() + " s, at " + where;
        }
    }

    /** The reason for the result line; the whole of it is on standard error. */
    private static String oneLine(Throwable problem) {
        String text = problem instanceof Failure ? problem.getMessage() : problem.toString();
        String line = text.replaceAll("\\s+", " ");
        return line.length() <= REASON_CHARACTERS_MAX ? line : line.substring(0, REASON_CHARACTERS_MAX) + "...";
    }
}
