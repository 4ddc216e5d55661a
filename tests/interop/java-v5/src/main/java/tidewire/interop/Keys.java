package tidewire.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.pulsar.common.util.Murmur3_32Hash;

/** Keys that land where a scenario wants them: the client routes by the low 16 bits of Murmur3 of the key. */
final class Keys {
    private Keys() {
    }

    static int hash(String key) {
        return Murmur3_32Hash.getInstance().makeHash(key.getBytes(StandardCharsets.UTF_8)) & 0xFFFF;
    }

    static String inRange(int hashStart, int hashEnd) {
        for (int number = 0; ; number++) {
            String key = "key-" + number;
            int hash = hash(key);
            if (hash >= hashStart && hash <= hashEnd) {
                return key;
            }
        }
    }

    /** Two keys for every active segment, one in each half of its range, so that a split gives each child one of them. */
    static List<String> overAll(List<Admin.Segment> segments) {
        List<String> keys = new ArrayList<>();
        for (Admin.Segment segment : segments) {
            if (segment.active()) {
                int middle = (segment.hashStart() + segment.hashEnd()) / 2;
                keys.add(inRange(segment.hashStart(), middle));
                keys.add(inRange(middle + 1, segment.hashEnd()));
            }
        }
        return keys;
    }
}
