package tidewire.interop.kafka;

import com.google.gson.JsonObject;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;

/** A producer, a consumer or an administrator. One thread makes all its calls, one after the other. */
interface Party extends AutoCloseable {
    /** The result of a call that returns nothing. */
    CompletionStage<?> DONE = CompletableFuture.completedFuture(null);

    /** Does what a call says. The result becomes JSON; it may come later, while the next call is made. */
    CompletionStage<?> play(String call, JsonObject with) throws Exception;

    @Override
    void close();

    /** A result that is there. */
    static CompletionStage<?> done(Object result) {
        return CompletableFuture.completedFuture(result);
    }
}
