"""The client's side of the protocol, without IO. `tidewire.client` (anyio) and `tidewire.spark` (blocking) share it.

Each rule of the conversation between client and broker is here once. An adapter owns the socket, the clock and the
tasks. It feeds the received bytes to this package, acts on the results, and sends the bytes that the package made.

Nothing here waits, opens a resource or reads a clock. Time and randomness come in as arguments.

- `conversation`: one connection, from CONNECT to its end: bytes in, events out
- `listeners`: which producer, consumer or watch a pushed command is for
- `lookup`: which broker to ask for a topic's owner, and which one next
- `features`: what a broker must support
- `addresses`, `sockets`: where a broker listens, and the socket options of a connection
- `layout`, `topic_names`, `positions`: a topic's segments, their names, and positions in them
- `unanswered`: what happens to sends without a response
- `coordination`: requests a transaction's end until the outcome is known
- `backoff`: the delays between attempts
- `silence`: how long a broker may be silent
- `errors`, `refusals`: what every client raises, and the protocol's codes as classes
"""
