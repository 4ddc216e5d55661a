"""What a client of a broker must know, without IO: `tidewire.client` (anyio) and `tidewire.spark` (blocking) share it.

Each rule of the conversation between client and broker stands here once. An adapter owns the socket, the clock and the
tasks. It feeds this package what arrived, acts upon what it returns, and sends the bytes that it made.

Nothing here waits, opens anything, or reads a clock. Time and randomness come in as arguments.

- `conversation`: one connection, from the greeting to its end: bytes in, events out
- `listeners`: which producer, consumer or watch a pushed command is for
- `lookup`: whom to ask for a topic's broker, and whom next
- `features`: what a broker has to support
- `addresses`, `sockets`: where a broker listens, and how the kernel watches over a connection to it
- `layout`, `topic_names`, `positions`: a topic's segments, their names, and places in them
- `unanswered`: what becomes of sends that were not answered
- `coordination`: asking for a transaction's end until its outcome is known
- `backoff`: the delays between attempts
- `errors`, `refusals`: what every client raises, and the protocol's codes as classes
"""
