package tidewire.interop;

import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionType;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Sends messages in chunks, for Spark to read; `tests/interop/test_spark_java_chunks.py` runs it.
 *
 * <p>Arguments: {@code SERVICE_URL TOPIC COMPRESSION PRODUCERS CHUNK_BYTES SIZE...}. Each producer sends a message of
 * each size at once with the others, so their chunks lie between each other. The values are noise, which no compression
 * makes smaller. The key is the producer's number. Properties tell the value's {@code size} in bytes and its {@code
 * sha256}.
 */
public final class SparkChunks {
    private static final Duration TIMEOUT = Duration.ofMinutes(1);

    private SparkChunks() {
    }

    public static void main(String[] arguments) throws Exception {
        CompressionType compression = CompressionType.valueOf(arguments[2]);
        int producers = Integer.parseInt(arguments[3]);
        int chunkBytes = Integer.parseInt(arguments[4]);
        try (PulsarClient client = Stage.connect(arguments[0], TIMEOUT)) {
            List<Producer<byte[]>> open = new ArrayList<>();
            for (int number = 0; number < producers; number++) {
                open.add(client.newProducer(Schema.bytes())
                        .topic(arguments[1])
                        .batchingPolicy(BatchingPolicy.ofDisabled())
                        .compressionPolicy(CompressionPolicy.of(compression))
                        .chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(chunkBytes).build())
                        .create());
            }
            Random noise = new Random(1);
            List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
            for (String given : Arrays.asList(arguments).subList(5, arguments.length)) {
                for (int number = 0; number < producers; number++) {
                    byte[] value = new byte[Integer.parseInt(given)];
                    noise.nextBytes(value);
                    receipts.add(open.get(number).async().newMessage()
                            .key(Integer.toString(number))
                            .value(value)
                            .property("size", given)
                            .property("sha256", HexFormat.of().formatHex(
                                    MessageDigest.getInstance("SHA-256").digest(value)))
                            .send());
                }
            }
            Expect.allDone(receipts);
            for (Producer<byte[]> producer : open) {
                producer.close();
            }
        }
    }
}
