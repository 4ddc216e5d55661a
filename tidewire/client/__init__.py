"""The client of Tidewire, and of any broker that speaks Pulsar's protocol with scalable topics.

Users import from `tidewire`. The files, from the outside in:

- `client`: `connect` and `Client`; owns the task group
- `producer`, `segment_producer`: routing, and one segment's session
- `outbox`, `sending`: what is waiting and how it is batched, and one message on its way
- `stream_consumer`, `queue_consumer`, `checkpoint_consumer`, `consumers`, `reader`: the kinds of consumer
- `checkpoint`: how far a checkpoint consumer has come
- `redelivery`, `dead_letters`: when a message comes again, and where it goes when it did too often
- `topic_consumer`, `subscribing`, `seeking`, `inbox`: one segment's session, how it begins and moves, what has arrived
- `producer_session`, `topic_session`, `registration`: their phases, as tables
- `acknowledgements`, `confirmations`: what was dealt with, and having that confirmed
- `transactions`, `coordinators`: one transaction, and who decides it
- `layout_watch`: how we know of a topic's segments
- `network`, `connection`: brokers by address and by topic, and one connection
- `message`, `errors`: what users get to see
- `waking`, `backoff`, `background`: how tasks wait, and how they end
"""
