package tidewire.interop;

/** One story played by the client against the broker; it fails by throwing, and what it throws is the reason printed. */
@FunctionalInterface
interface Scenario {
    void play(Stage stage) throws Exception;
}
