package tidewire.interop;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.impl.PulsarClientImpl;
import org.apache.pulsar.client.impl.transaction.TransactionCoordinatorClientImpl;

/**
 * Ends transactions by the client's own coordinator connection, below its transaction object.
 *
 * <p>The transaction object answers a second commit by itself and never asks the broker; what the broker says to a
 * repeated or contradicting end can only be seen one floor below. The client itself is as published.
 */
final class Coordinator {
    private final TransactionCoordinatorClientImpl client;

    Coordinator(PulsarClient client) throws ReflectiveOperationException {
        this.client = ((PulsarClientImpl) call(client, "v4Client")).getTcClient();
    }

    static TxnID id(Transaction transaction) throws ReflectiveOperationException {
        var inner = (org.apache.pulsar.client.api.transaction.Transaction) call(transaction, "v4Transaction");
        return inner.getTxnID();
    }

    /**
     * Waits until the broker has answered all that was sent and acknowledged in the transaction. The client itself shows
     * the answers only at the transaction's end.
     */
    static void answered(Transaction transaction) throws Exception {
        Object inner = call(transaction, "v4Transaction");
        Field underWay = inner.getClass().getDeclaredField("opFuture");
        underWay.setAccessible(true);
        ((CompletableFuture<?>) underWay.get(inner)).get(Limits.OPERATION_MAX.toMillis(), TimeUnit.MILLISECONDS);
    }

    /** Asks the broker to commit; returns "ok" or the simple name of the error it answered. */
    String commit(TxnID id) throws InterruptedException, TimeoutException {
        return outcome(client.commitAsync(id));
    }

    String abort(TxnID id) throws InterruptedException, TimeoutException {
        return outcome(client.abortAsync(id));
    }

    private static String outcome(CompletableFuture<Void> answer)
            throws InterruptedException, TimeoutException {
        try {
            answer.get(Limits.OPERATION_MAX.toMillis(), TimeUnit.MILLISECONDS);
            return "ok";
        } catch (ExecutionException e) {
            return e.getCause().getClass().getSimpleName();
        }
    }

    private static Object call(Object target, String method) throws ReflectiveOperationException {
        Method found = target.getClass().getDeclaredMethod(method);
        found.setAccessible(true);
        return found.invoke(target);
    }
}
