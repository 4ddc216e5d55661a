package tidewire.interop;

import java.time.Duration;

/** Every wait of this program, by name: nothing here waits without a bound. */
final class Limits {
    /** One request of the client: lookup, producer or consumer creation, a transaction's end. */
    static final Duration OPERATION_MAX = Duration.ofSeconds(60);
    /** An answer that the client must not wait or repeat anything for. Its requests have limits of 30 s or more. */
    static final Duration AT_ONCE = Duration.ofSeconds(20);
    /** One HTTP exchange. */
    static final Duration HTTP_MAX = Duration.ofSeconds(60);
    /** From the moment messages may be seen to the delivery of the last one. */
    static final Duration DELIVERY_MAX = Duration.ofSeconds(60);
    /** How long a consumer stays silent before we believe that nothing more comes. */
    static final Duration QUIET = Duration.ofMillis(700);
    /** How long one of two consumers is listened to before the other one has its turn. */
    static final Duration TURN = Duration.ofMillis(20);
    /** How long a segment's move to another consumer may take, where the scenario can see no sign of it. */
    static final Duration MOVE_MAX = Duration.ofSeconds(3);
    /** A whole scenario; one that takes longer is abandoned and counts as failed. */
    static final Duration SCENARIO_MAX = Duration.ofSeconds(240);
    /** The timeout that transactions get unless a scenario is about timeouts: longer than any scenario. */
    static final Duration TRANSACTION_TIMEOUT = Duration.ofSeconds(300);
    /** The timeout that transactions get in scenarios about timeouts: longer than what such a scenario does before. */
    static final Duration TRANSACTION_TIMEOUT_SHORT = Duration.ofSeconds(15);

    private Limits() {
    }
}
