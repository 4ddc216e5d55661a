"""The bytes of Apache Kafka's protocol: requests and responses, and record batches. It does no IO."""
