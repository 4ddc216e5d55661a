"""What a client of a broker must know, without IO: `tidewire.client` (anyio) and `tidewire.spark` (blocking) share it.

Each rule of the conversation between client and broker stands here once. An adapter owns the socket, the clock and the
tasks. It feeds this package what arrived, acts upon what it returns, and sends the bytes that it made.

Nothing here waits, opens anything, or reads a clock. Time and randomness come in as arguments.
"""
