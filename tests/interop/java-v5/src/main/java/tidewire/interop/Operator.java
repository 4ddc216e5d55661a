package tidewire.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * Whoever started the broker, asked to kill and restart it.
 *
 * <p>The question is the line {@code RESTART} on standard output; the answer a line {@code RESTARTED} on standard input
 * once the broker is ready again under its old addresses. How long that may take is the scenario's own bound.
 *
 * <p>Whoever runs a cluster is asked for {@code MOVE topic}, {@code DEPOSE topic} and {@code KILL claim}, too.
 */
final class Operator {
    private final BufferedReader answers =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    void restartBroker() throws IOException, Failure {
        System.out.println("RESTART");
        System.out.flush();
        String answer = answers.readLine();
        Failure.unless("RESTARTED".equals(answer), "asked for a restart of the broker, the answer was " + answer);
    }

    /** Asks for something else to be done to a cluster; the answer is {@code DONE}. */
    void ask(String request) throws IOException, Failure {
        System.out.println(request);
        System.out.flush();
        String answer = answers.readLine();
        Failure.unless("DONE".equals(answer), "asked for " + request + ", the answer was " + answer);
    }
}
