"""The Kafka front end: connections, requests, topics and groups as Kafka's clients see them."""
