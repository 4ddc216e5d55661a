"""Stored entries in the format of the other protocol: Kafka's record batches and Pulsar's payloads.

An entry is stored as its client sent it. The broker converts it when a reader of the other protocol asks for it. These
are functions on bytes, which keep nothing and do no IO. They work in steps (`tidewire/wire/steps.py`), because an entry
may hold hundreds of thousands of messages (E7).

| module | job |
|---|---|
| `to_pulsar.py` | a record batch as the payload of a MESSAGE |
| `to_kafka.py` | a payload as a record batch |
| `headers.py` | headers and properties |
| `errors.py` | why an entry cannot be converted |

What becomes of each field is a table in `docs/compatibility.md`. This is what does not survive a way there and back:

| first stored as | what | comes back as |
|---|---|---|
| Kafka | a timestamp of 0 or less | the time when the broker took the entry |
| Kafka | the place of a header `pulsar:ordering_key` | the first header |
| Kafka | the order of headers with different names, if a client sends the message on | any order |
| Kafka | producer id, epoch, sequence; LogAppendTime | no producer; CreateTime |
| Pulsar | a key in base64 that is UTF-8 | the same key as text |
| Pulsar | no event time | the publish time, or the broker's if there is none |
| Pulsar | an event time of 2^63 or more | as no event time |
| Pulsar | text that is not UTF-8 (clients cannot send it) | the same bytes, escaped |
| Pulsar | a property whose name has the form of an escape | the property of the header that it names |
| Pulsar | a property `pulsar:ordering_key` | the ordering key |
| Pulsar | producer name, sequence id, publish time, schema version, transaction, `null_partition_key` | gone |
| Pulsar | a batch of one message | a message alone |
| Pulsar | a null value that has bytes | a null value |
| Pulsar | messages that compaction removed from a batch | gone; their offsets stay free |
"""
