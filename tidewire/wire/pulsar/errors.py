"""What can be wrong with bytes that came in. The two branches say how far the damage goes.

A `FrameError` means that the peer and we no longer agree on what it sends: nothing after it can be trusted, so the
connection is closed. A `MessageError` is about one message inside a sound frame: the sender or reader of that message
is told, and the connection goes on. None is worth a retry with the same bytes.
"""


class WireError(ValueError):
    """The bytes break the protocol; the message says which rule."""


class FrameError(WireError):
    """The stream cannot be read any further."""


class FrameTooLarge(FrameError):
    """A frame announces more bytes than allowed. Raised before any of them is kept."""


class TruncatedFrame(FrameError):
    """A frame's two lengths contradict each other: the command would reach beyond the frame."""


class MalformedCommand(FrameError):
    """A command does not parse, lacks what its type requires, or holds text that is not UTF-8."""


class MessageError(WireError):
    """One message cannot be used; the frames around it can."""


class ChecksumMismatch(MessageError):
    """The payload's CRC32C differs from the one its sender computed."""


class UnsupportedCompression(MessageError):
    """The body is compressed by a codec this version does not know."""


class MalformedMessage(MessageError):
    """A payload does not divide into metadata and messages, or does not decompress to the size it claims."""


class MessageTooLarge(MessageError):
    """A message's body has, or claims to decompress to, more bytes than allowed. Raised before memory is taken."""


class EncryptedMessage(MessageError):
    """The body is encrypted end to end; only a holder of its key can divide it into messages."""
