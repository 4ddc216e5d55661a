"""Pulsar's binary protocol: bytes to commands and messages, and back. No IO, so that broker, client and Spark share it.

- `frames`: a stream of bytes to frames, and commands to frames
- `parsing`: the bytes of one command to a checked command
- `commands`: constructors for the commands both sides send
- `messages`: a payload to its metadata and messages, and back
- `compression`: the codecs of a message's body
- `checksums`: CRC32C
- `message_ids`: 64-bit ids that are -1 in one place and 2**64 - 1 in another
- `hashing`: where in the hash space a key falls
- `errors`: everything above raises, in one tree
"""
