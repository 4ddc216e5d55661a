"""Commands that find topics: who serves one, how many partitions it has, which topics exist, and their schemas."""

from collections.abc import Iterable

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_Type = pb.BaseCommand.Type
_Lookup = pb.CommandLookupTopicResponse.LookupType
_Partitions = pb.CommandPartitionedTopicMetadataResponse.LookupType


def lookup(
    topic: str, request_id: int, *, authoritative: bool = False, advertised_listener_name: str | None = None
) -> pb.BaseCommand:
    """Asks who serves a topic. `authoritative` follows a redirect: the asked broker decides and does not redirect."""
    content = pb.CommandLookupTopic(
        topic=topic,
        request_id=request_id,
        authoritative=authoritative,
        advertised_listener_name=advertised_listener_name,
    )
    return pb.BaseCommand(type=_Type.LOOKUP, lookup_topic=content)


def lookup_connect(
    request_id: int, broker_url: str, *, broker_url_tls: str | None = None, proxy_through_service_url: bool = False
) -> pb.BaseCommand:
    """The broker at this address serves the topic.

    If a proxy stands between, the client connects through the address in use.
    """
    content = pb.CommandLookupTopicResponse(
        request_id=request_id,
        response=_Lookup.Connect,
        broker_service_url=broker_url,
        broker_service_url_tls=broker_url_tls,
        authoritative=True,
        proxy_through_service_url=proxy_through_service_url,
    )
    return pb.BaseCommand(type=_Type.LOOKUP_RESPONSE, lookup_topic_response=content)


def lookup_redirect(
    request_id: int, broker_url: str, *, broker_url_tls: str | None = None, authoritative: bool = True
) -> pb.BaseCommand:
    """The broker at this address knows who serves the topic: ask it."""
    content = pb.CommandLookupTopicResponse(
        request_id=request_id,
        response=_Lookup.Redirect,
        broker_service_url=broker_url,
        broker_service_url_tls=broker_url_tls,
        authoritative=authoritative,
    )
    return pb.BaseCommand(type=_Type.LOOKUP_RESPONSE, lookup_topic_response=content)


def lookup_failed(request_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """No broker can be named."""
    content = pb.CommandLookupTopicResponse(
        request_id=request_id, response=_Lookup.Failed, error=code, message=message, authoritative=True
    )
    return pb.BaseCommand(type=_Type.LOOKUP_RESPONSE, lookup_topic_response=content)


def partitioned_metadata(topic: str, request_id: int, *, auto_create: bool = True) -> pb.BaseCommand:
    """Asks for a topic's number of partitions."""
    content = pb.CommandPartitionedTopicMetadata(
        topic=topic, request_id=request_id, metadata_auto_creation_enabled=auto_create
    )
    return pb.BaseCommand(type=_Type.PARTITIONED_METADATA, partition_metadata=content)


def partitioned_metadata_response(request_id: int, partitions: int) -> pb.BaseCommand:
    """The number of partitions; 0 for a topic that is not partitioned."""
    content = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id, partitions=partitions, response=_Partitions.Success
    )
    return pb.BaseCommand(type=_Type.PARTITIONED_METADATA_RESPONSE, partition_metadata_response=content)


def partitioned_metadata_failed(request_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """The number of partitions is not available."""
    content = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id, response=_Partitions.Failed, error=code, message=message
    )
    return pb.BaseCommand(type=_Type.PARTITIONED_METADATA_RESPONSE, partition_metadata_response=content)


def topics_of_namespace(
    request_id: int,
    namespace: str,
    *,
    mode: pb.CommandGetTopicsOfNamespace.Mode = pb.CommandGetTopicsOfNamespace.Mode.PERSISTENT,
    topics_pattern: str | None = None,
    topics_hash: str | None = None,
) -> pb.BaseCommand:
    """Asks for a namespace's topics. With `topics_hash`, the broker lists nothing if the list still has that hash."""
    content = pb.CommandGetTopicsOfNamespace(
        request_id=request_id,
        namespace=namespace,
        mode=mode,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )
    return pb.BaseCommand(type=_Type.GET_TOPICS_OF_NAMESPACE, get_topics_of_namespace=content)


def topics_of_namespace_response(
    request_id: int,
    topics: Iterable[str],
    *,
    filtered: bool = False,
    changed: bool = True,
    topics_hash: str | None = None,
) -> pb.BaseCommand:
    """The topics.

    `filtered`: the broker applied the pattern. Not `changed`: none are listed, because the client's list is current.
    """
    content = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, filtered=filtered, changed=changed, topics_hash=topics_hash
    )
    return pb.BaseCommand(type=_Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, get_topics_of_namespace_response=content)


def watch_topic_list(
    request_id: int, watcher_id: int, namespace: str, topics_pattern: str, *, topics_hash: str | None = None
) -> pb.BaseCommand:
    """Asks for the topics of a namespace that match the pattern, now and at each change."""
    content = pb.CommandWatchTopicList(
        request_id=request_id,
        watcher_id=watcher_id,
        namespace=namespace,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )
    return pb.BaseCommand(type=_Type.WATCH_TOPIC_LIST, watch_topic_list=content)


def watch_topic_list_success(
    request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str
) -> pb.BaseCommand:
    """The watch is open. These topics match now."""
    content = pb.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return pb.BaseCommand(type=_Type.WATCH_TOPIC_LIST_SUCCESS, watch_topic_list_success=content)


def watch_topic_update(
    watcher_id: int, new_topics: Iterable[str], deleted_topics: Iterable[str], topics_hash: str
) -> pb.BaseCommand:
    """Topics that were added and removed since the last update. The hash is that of the whole list now."""
    content = pb.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new_topics, deleted_topics=deleted_topics, topics_hash=topics_hash
    )
    return pb.BaseCommand(type=_Type.WATCH_TOPIC_UPDATE, watch_topic_update=content)


def watch_topic_list_close(request_id: int, watcher_id: int) -> pb.BaseCommand:
    """Ends a watch; answered by SUCCESS."""
    content = pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id)
    return pb.BaseCommand(type=_Type.WATCH_TOPIC_LIST_CLOSE, watch_topic_list_close=content)


def get_schema(request_id: int, topic: str, *, version: bytes | None = None) -> pb.BaseCommand:
    """Asks for a topic's schema: the latest one, or the one of that version."""
    content = pb.CommandGetSchema(request_id=request_id, topic=topic, schema_version=version)
    return pb.BaseCommand(type=_Type.GET_SCHEMA, get_schema=content)


def get_schema_response(request_id: int, schema: pb.Schema, version: bytes) -> pb.BaseCommand:
    """The schema."""
    content = pb.CommandGetSchemaResponse(request_id=request_id, schema=schema, schema_version=version)
    return pb.BaseCommand(type=_Type.GET_SCHEMA_RESPONSE, get_schema_response=content)


def get_schema_failed(request_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """There is no such schema, or it is not available."""
    content = pb.CommandGetSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return pb.BaseCommand(type=_Type.GET_SCHEMA_RESPONSE, get_schema_response=content)


def get_or_create_schema(request_id: int, topic: str, schema: pb.Schema) -> pb.BaseCommand:
    """Asks for the version of a schema. The topic adopts the schema if it has no equal one."""
    content = pb.CommandGetOrCreateSchema(request_id=request_id, topic=topic, schema=schema)
    return pb.BaseCommand(type=_Type.GET_OR_CREATE_SCHEMA, get_or_create_schema=content)


def get_or_create_schema_response(request_id: int, version: bytes) -> pb.BaseCommand:
    """The schema's version."""
    content = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return pb.BaseCommand(type=_Type.GET_OR_CREATE_SCHEMA_RESPONSE, get_or_create_schema_response=content)


def get_or_create_schema_failed(request_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """The topic refuses the schema."""
    content = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, error_code=code, error_message=message)
    return pb.BaseCommand(type=_Type.GET_OR_CREATE_SCHEMA_RESPONSE, get_or_create_schema_response=content)
