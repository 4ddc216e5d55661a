"""What can be wrong with received bytes. The two branches of the tree say how far the damage reaches.

A `FrameError` means that the two sides disagree about the stream. Nothing after it can be trusted, so the connection is
closed. A `MessageError` concerns one message inside a sound frame. The sender or reader of that message is told, and
the connection stays open. Sending the same bytes again never helps.
"""

from tidewire.wire.protocols import SpokenProtocol


class WireError(ValueError):
    """The bytes break the protocol. The message names the rule."""


class FrameError(WireError):
    """The rest of the stream cannot be read."""


class FrameTooLarge(FrameError):
    """A frame announces more bytes than allowed. Raised before any of them is buffered."""


class OtherProtocol(FrameError):
    """The peer speaks another protocol than Pulsar's."""

    def __init__(self, spoken: SpokenProtocol) -> None:
        super().__init__(f"the first bytes are {spoken}, and not Pulsar's protocol without TLS")
        self.spoken = spoken


class TruncatedFrame(FrameError):
    """A frame's two lengths contradict each other: the command would reach beyond the frame."""


class MalformedCommand(FrameError):
    """A command does not parse, lacks a field that its type requires, or holds text that is not UTF-8."""


class MessageError(WireError):
    """One message cannot be used; the frames around it can."""


class ChecksumMismatch(MessageError):
    """The payload's CRC32C differs from the one its sender computed."""


class UnsupportedCompression(MessageError):
    """The body is compressed with a codec that this version does not know."""


class MalformedMessage(MessageError):
    """A payload does not divide into metadata and messages, or does not decompress to the size that it claims."""


class MessageTooLarge(MessageError):
    """A message's body has more bytes than allowed, or claims to decompress to more.

    Raised before memory is allocated.
    """


class EncryptedMessage(MessageError):
    """The body is encrypted end to end. Only a holder of the key can divide it into messages."""
