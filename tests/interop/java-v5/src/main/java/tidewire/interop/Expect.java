package tidewire.interop;

import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.v5.PulsarClientException;

/** What must hold, said in one line each. */
final class Expect {
    interface Step {
        void run() throws Exception;
    }

    private Expect() {
    }

    static void equal(String what, Object got, Object wanted) throws Failure {
        Failure.unless(Objects.equals(got, wanted), what + " is " + got + " instead of " + wanted);
    }

    /** The client must throw one of its own exceptions; returns it. */
    static PulsarClientException refused(String what, Step step) throws Exception {
        try {
            step.run();
        } catch (PulsarClientException expected) {
            return expected;
        }
        throw new Failure(what + " was accepted");
    }

    /** Waits for everything sent without waiting. */
    static void allDone(List<? extends CompletableFuture<?>> futures) throws Exception {
        done(CompletableFuture.allOf(futures.toArray(CompletableFuture[]::new)));
    }

    static <T> T done(CompletableFuture<T> future) throws Exception {
        try {
            return future.get(Limits.DELIVERY_MAX.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException | CompletionException e) {
            if (e.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw e;
        }
    }
}
