"""What is wrong with the bytes of a Kafka client. Both errors end the connection, because its next request is lost."""


class RequestError(ValueError):
    """The bytes are no request of Kafka's protocol. The message names the broken rule."""


class RequestTooLarge(RequestError):
    """A request announces more bytes, or contains more elements, than the broker takes at once."""


class MalformedRequest(RequestError):
    """A field of a request breaks a rule of its type."""
