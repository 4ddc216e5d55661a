package tidewire.interop;

/** What was expected of the broker did not happen; the message says what and what happened instead. */
final class Failure extends Exception {
    private static final long serialVersionUID = 1L;

    Failure(String message) {
        super(message);
    }

    static void unless(boolean holds, String otherwise) throws Failure {
        if (!holds) {
            throw new Failure(otherwise);
        }
    }
}
