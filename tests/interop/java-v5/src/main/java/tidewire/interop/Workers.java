package tidewire.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

/** Threads that do the same work side by side. */
final class Workers {
    @FunctionalInterface
    interface Work {
        void run() throws Exception;
    }

    private final List<Thread> threads = new ArrayList<>();
    private final AtomicReference<Exception> failure = new AtomicReference<>();

    private Workers() {
    }

    static Workers start(int count, Work work) {
        Workers workers = new Workers();
        for (int number = 0; number < count; number++) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (Exception e) {
                    workers.failure.compareAndSet(null, e);
                }
            });
            workers.threads.add(thread);
            thread.start();
        }
        return workers;
    }

    /** Waits until each has ended, and throws the first failure. */
    void join() throws Exception {
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
    }
}
