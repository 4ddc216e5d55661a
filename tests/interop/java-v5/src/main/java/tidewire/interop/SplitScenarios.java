package tidewire.interop;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;

/** Topics whose segments are split while transactions are open, most of them with no send in flight at that moment. */
final class SplitScenarios {
    private SplitScenarios() {
    }

    static void addTo(Map<String, Scenario> scenarios) {
        scenarios.put("create_and_delete_topic", SplitScenarios::createAndDelete);
        scenarios.put("split_shows_in_metadata", SplitScenarios::splitShowsInMetadata);
        scenarios.put("split_of_sealed_segment_is_refused", SplitScenarios::splitOfSealedIsRefused);
        scenarios.put("transaction_across_split", SplitScenarios::transactionAcrossSplit);
        scenarios.put("transaction_across_split_seen_first", SplitScenarios::transactionAcrossSplitSeenFirst);
        scenarios.put("transaction_across_two_splits", SplitScenarios::transactionAcrossTwoSplits);
        scenarios.put("aborted_transaction_across_split", SplitScenarios::abortedAcrossSplit);
        scenarios.put("attached_consumer_through_split", SplitScenarios::attachedConsumerThroughSplit);
        scenarios.put("sends_in_flight_at_split", SplitScenarios::sendsInFlight);
        scenarios.put("transaction_in_flight_at_split", SplitScenarios::transactionInFlight);
    }

    /** The paths that Pulsar's admin clients use, with their documented answers. */
    private static void createAndDelete(Stage stage) throws Exception {
        stage.admin.metadata(stage.name).expect(404, "GET of an unknown topic");
        List<Admin.Segment> segments = stage.createTopic(4);
        Failure.unless(segments.size() == 4, "a topic of 4 segments shows " + segments);
        int next = 0;
        for (Admin.Segment segment : segments) {
            Failure.unless(segment.active() && segment.hashStart() == next, "ranges leave a gap or overlap: " + segments);
            next = segment.hashEnd() + 1;
        }
        Failure.unless(next == 0x10000, "the ranges end at " + next);
        stage.admin.create(stage.name, 4).expect(409, "a second PUT");
        var stats = stage.admin.stats(stage.name).expect(200, "stats").json();
        Failure.unless(stats.get("activeSegments").getAsInt() == 4, "stats: " + stats);
        String first = stats.getAsJsonObject("segments").getAsJsonObject("0").get("name").getAsString();
        String wanted = "segment://public/default/" + stage.name + "/0000-3fff-0";
        Failure.unless(first.equals(wanted), "segment 0 is called " + first + " instead of " + wanted);
        stage.admin.delete(stage.name).expect(204, "DELETE");
        stage.admin.metadata(stage.name).expect(404, "GET of a deleted topic");
    }

    private static void splitShowsInMetadata(Stage stage) throws Exception {
        stage.createTopic(4);
        stage.split(1);
        List<Admin.Segment> segments = stage.admin.segments(stage.name);
        Admin.Segment parent = segments.get(1);
        Failure.unless(!parent.active() && parent.children().equals(List.of(4, 5)), "the parent: " + parent);
        Admin.Segment lower = segments.get(4);
        Admin.Segment upper = segments.get(5);
        Failure.unless(lower.equals(new Admin.Segment(4, 0x4000, 0x5fff, true, List.of(1), List.of()))
                && upper.equals(new Admin.Segment(5, 0x6000, 0x7fff, true, List.of(1), List.of())),
                "the children: " + lower + " and " + upper);
        var stats = stage.admin.stats(stage.name).expect(200, "stats").json();
        Failure.unless(stats.get("epoch").getAsInt() == 1 && stats.get("sealedSegments").getAsInt() == 1,
                "stats after a split: " + stats);
    }

    private static void splitOfSealedIsRefused(Stage stage) throws Exception {
        stage.admin.split(stage.name, 0).expect(404, "split of an unknown topic");
        stage.createTopic(2);
        stage.split(0);
        stage.admin.split(stage.name, 0).expect(412, "split of a sealed segment");
        stage.admin.segments(stage.name);
    }

    /** T20: the transaction goes on the moment the split has answered; everything of it is seen once, in order. */
    private static void transactionAcrossSplit(Stage stage) throws Exception {
        acrossSplits(stage, false, List.of(1));
    }

    /** T20: the same, when a message outside the transaction has made the producer follow the split already. */
    private static void transactionAcrossSplitSeenFirst(Stage stage) throws Exception {
        acrossSplits(stage, true, List.of(1));
    }

    /** T20: a child of the first split is split again under the same transaction. */
    private static void transactionAcrossTwoSplits(Stage stage) throws Exception {
        acrossSplits(stage, true, List.of(1, 4));
    }

    private static void acrossSplits(Stage stage, boolean followFirst, List<Integer> splits) throws Exception {
        List<Admin.Segment> segments = stage.createTopic(4);
        List<String> keys = Keys.overAll(segments);
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction transaction = stage.begin();
        sendRound(script, producer, keys, transaction);
        for (int segment : splits) {
            stage.split(segment);
            if (followFirst) {
                sendRound(script, producer, keys, null);
            }
            sendRound(script, producer, keys, transaction);
        }
        transaction.commit();
        producer.close();
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /** T17, T20: nothing of an aborted transaction is seen, neither from the parent nor from the children. */
    private static void abortedAcrossSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction transaction = stage.begin();
        sendRound(script, producer, keys, transaction);
        stage.split(1);
        sendRound(script, producer, keys, null);
        sendRound(script, producer, keys, transaction);
        transaction.abort();
        script.drop(transaction);
        sendRound(script, producer, keys, null);
        producer.close();
        script.check(Stage.receive(stage.stream("after"), script.size()));
    }

    /**
     * T14, T20: a consumer attached all the while sees nothing of the open transaction, then all of it, and drains
     * the parent before the children, so that the order of each key holds over the split.
     */
    private static void attachedConsumerThroughSplit(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        StreamConsumer<String> consumer = stage.stream("attached");
        Producer<String> producer = stage.producer();
        sendRound(script, producer, keys, null);
        List<Message<String>> received = Stage.receive(consumer, script.size());
        script.check(received);
        script.forget();
        Transaction transaction = stage.begin();
        sendRound(script, producer, keys, transaction);
        stage.split(1);
        sendRound(script, producer, keys, null);
        sendRound(script, producer, keys, transaction);
        Stage.expectNothing(consumer, "every segment has an entry of an open transaction in front");
        transaction.commit();
        sendRound(script, producer, keys, null);
        script.check(Stage.receive(consumer, script.size()));
        producer.close();
    }

    /** T20: messages under way to the parent at its seal are lost by nobody; the client may send one of them twice. */
    private static void sendsInFlight(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        splitUnderSends(stage, script, stage.producer(), keys, null).join();
        Set<String> received = new HashSet<>();
        Stage.receive(stage.stream("after"), script.size()).forEach(message -> received.add(message.value()));
        Failure.unless(received.size() == script.size(), script.size() + " messages have receipts, " + received.size()
                + " were delivered");
    }

    /**
     * T20: the client gives up a transaction when it had to send one of its messages again, so the commit may fail; but
     * then nothing of it is seen, and else everything once.
     */
    private static void transactionInFlight(Stage stage) throws Exception {
        List<String> keys = Keys.overAll(stage.createTopic(4));
        Script script = new Script();
        Producer<String> producer = stage.producer();
        Transaction transaction = stage.begin();
        splitUnderSends(stage, script, producer, keys, transaction).exceptionally(problem -> null).join();
        boolean committed = true;
        try {
            transaction.commit();
        } catch (PulsarClientException e) {
            committed = false;
            script.drop(transaction);
        }
        System.err.println("transaction_in_flight_at_split: the client " + (committed ? "committed" : "gave up"));
        sendRound(script, producer, keys, null);
        List<Message<String>> received = Stage.receive(stage.stream("after"), script.size());
        // Sent again from several threads of the client's own, so only the messages count here, not their order.
        Set<String> once = new HashSet<>();
        received.forEach(message -> once.add(message.value()));
        Failure.unless(received.size() == script.size() && once.size() == script.size(), "committed: " + committed
                + ", to be seen: " + script.size() + ", received: " + received.size() + ", different: " + once.size());
    }

    /** Sends without waiting, splits segment 1 after half of it; done when every message has its receipt or error. */
    private static CompletableFuture<Void> splitUnderSends(
            Stage stage, Script script, Producer<String> producer, List<String> keys, Transaction transaction)
            throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        CompletableFuture<Void> split = null;
        for (int round = 0; round < 200; round++) {
            if (round == 100) {
                split = CompletableFuture.runAsync(() -> {
                    try {
                        stage.split(1);
                    } catch (Exception e) {
                        throw new CompletionException(e);
                    }
                });
            }
            for (String key : keys) {
                var message = producer.async().newMessage().key(key).value(script.next(key, transaction));
                if (transaction != null) {
                    message.transaction(transaction);
                }
                receipts.add(message.send());
            }
            // Spread over the time a split takes; a burst would be over before it.
            Thread.sleep(2);
        }
        split.get(Limits.HTTP_MAX.toMillis(), TimeUnit.MILLISECONDS);
        return CompletableFuture.allOf(receipts.toArray(CompletableFuture[]::new))
                .orTimeout(Limits.DELIVERY_MAX.toMillis(), TimeUnit.MILLISECONDS);
    }

    static void sendRound(Script script, Producer<String> producer, List<String> keys, Transaction transaction)
            throws Exception {
        for (String key : keys) {
            script.send(producer, key, transaction);
        }
    }
}
