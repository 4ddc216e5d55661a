"""The client of Tidewire, and of any broker that speaks Pulsar's protocol with scalable topics.

Users import from `tidewire`. The files, from the outside in:

- `client`: `connect` and `Client`, which owns the task group
- `producer`, `segment_producer`: routing, and one segment's producer
- `outbox`, `sending`: the unanswered messages and their batches, and one message
- `stream_consumer`, `queue_consumer`, `checkpoint_consumer`, `consumers`, `reader`: the kinds of consumer
- `checkpoint`: the position of a checkpoint consumer
- `redelivery`, `dead_letters`: when a message is redelivered, and where it goes after too many redeliveries
- `topic_consumer`, `subscribing`, `seeking`, `inbox`: one segment's consumer, its SUBSCRIBE, its seeks, its queue
- `producer_session`, `topic_session`, `registration`: the phases of sessions, as tables
- `acknowledgements`, `confirmations`: unsent acknowledgements, and those that the broker has to answer
- `transactions`, `coordinators`: one transaction, and the coordinators that decide transactions
- `layout_watch`: the current layout of a topic
- `network`, `connection`: brokers by address and by topic, and one connection
- `schema`, `records`, `plain_schema`, `plain_values`: values as bytes, of dataclasses and of definitions
- `message`, `errors`: what users see
- `troubles`: why parts of the client retry at the moment
- `waking`, `backoff`, `background`: how tasks wait, and how they end
"""
