package tidewire.interop;

import java.time.Duration;

/** Every wait of this program, by name: nothing here waits without a bound. */
final class Limits {
    /** One request of the client: lookup, producer or consumer creation, a transaction's end. */
    static final Duration OPERATION_MAX = Duration.ofSeconds(15);
    /** An answer that the client must not wait or repeat anything for. */
    static final Duration AT_ONCE = Duration.ofSeconds(5);
    /** One HTTP exchange. */
    static final Duration HTTP_MAX = Duration.ofSeconds(15);
    /** From the moment messages may be seen to the delivery of the last one. */
    static final Duration DELIVERY_MAX = Duration.ofSeconds(20);
    /** How long a consumer stays silent before we believe that nothing more comes. */
    static final Duration QUIET = Duration.ofMillis(700);
    /** How long one of two consumers is listened to before the other one has its turn. */
    static final Duration TURN = Duration.ofMillis(20);
    /** A whole scenario; one that takes longer is abandoned and counts as failed. */
    static final Duration SCENARIO_MAX = Duration.ofSeconds(90);
    /** The timeout that transactions get unless a scenario is about timeouts: longer than any scenario. */
    static final Duration TRANSACTION_TIMEOUT = Duration.ofSeconds(120);

    private Limits() {
    }
}
