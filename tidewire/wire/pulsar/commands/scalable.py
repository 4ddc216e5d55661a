"""Commands of scalable topics: layout sessions, controllers that assign segments, and watches."""

from collections.abc import Iterable, Mapping

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_Type = pb.BaseCommand.Type


def scalable_topic_lookup(session_id: int, topic: str) -> pb.BaseCommand:
    """Opens a session that receives the topic's layout, now and at each change."""
    content = pb.CommandScalableTopicLookup(session_id=session_id, topic=topic)
    return pb.BaseCommand(type=_Type.SCALABLE_TOPIC_LOOKUP, scalable_topic_lookup=content)


def scalable_topic_update(
    session_id: int, dag: pb.ScalableTopicDAG, *, resolved_topic_name: str | None = None
) -> pb.BaseCommand:
    """The whole current layout. It may be sent again unchanged. The name is the full name of the requested topic."""
    content = pb.CommandScalableTopicUpdate(session_id=session_id, dag=dag, resolved_topic_name=resolved_topic_name)
    return pb.BaseCommand(type=_Type.SCALABLE_TOPIC_UPDATE, scalable_topic_update=content)


def scalable_topic_failed(session_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """The session cannot be opened, or cannot continue."""
    content = pb.CommandScalableTopicUpdate(session_id=session_id, error=code, message=message)
    return pb.BaseCommand(type=_Type.SCALABLE_TOPIC_UPDATE, scalable_topic_update=content)


def scalable_topic_close(session_id: int) -> pb.BaseCommand:
    """Ends the session. Not answered."""
    content = pb.CommandScalableTopicClose(session_id=session_id)
    return pb.BaseCommand(type=_Type.SCALABLE_TOPIC_CLOSE, scalable_topic_close=content)


def scalable_topic_subscribe(
    request_id: int,
    topic: str,
    subscription: str,
    consumer_name: str,
    consumer_id: int,
    *,
    consumer_type: pb.ScalableConsumerType = pb.ScalableConsumerType.STREAM,
) -> pb.BaseCommand:
    """Asks the topic's controller for a share of its segments."""
    content = pb.CommandScalableTopicSubscribe(
        request_id=request_id,
        topic=topic,
        subscription=subscription,
        consumer_name=consumer_name,
        consumer_id=consumer_id,
        consumer_type=consumer_type,
    )
    return pb.BaseCommand(type=_Type.SCALABLE_TOPIC_SUBSCRIBE, scalable_topic_subscribe=content)


def scalable_topic_subscribe_response(
    request_id: int, layout_epoch: int, segments: Iterable[pb.ScalableAssignedSegment]
) -> pb.BaseCommand:
    """The consumer's share."""
    content = pb.CommandScalableTopicSubscribeResponse(
        request_id=request_id,
        assignment=pb.ScalableConsumerAssignment(layout_epoch=layout_epoch, segments=segments),
    )
    return pb.BaseCommand(type=_Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, scalable_topic_subscribe_response=content)


def scalable_topic_subscribe_failed(request_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """The consumer gets no share."""
    content = pb.CommandScalableTopicSubscribeResponse(request_id=request_id, error=code, message=message)
    return pb.BaseCommand(type=_Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, scalable_topic_subscribe_response=content)


def scalable_topic_assignment_update(
    consumer_id: int, layout_epoch: int, segments: Iterable[pb.ScalableAssignedSegment]
) -> pb.BaseCommand:
    """The consumer's whole share from now on. It gives up segments that are not listed."""
    content = pb.CommandScalableTopicAssignmentUpdate(
        consumer_id=consumer_id,
        assignment=pb.ScalableConsumerAssignment(layout_epoch=layout_epoch, segments=segments),
    )
    return pb.BaseCommand(type=_Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE, scalable_topic_assignment_update=content)


def watch_scalable_topics(
    watch_id: int,
    namespace: str,
    *,
    property_filters: Mapping[str, str] | None = None,
    current_hash: str | None = None,
) -> pb.BaseCommand:
    """Asks for the scalable topics of a namespace that have these properties, now and at each change."""
    content = pb.CommandWatchScalableTopics(
        watch_id=watch_id,
        namespace=namespace,
        property_filters=[pb.KeyValue(key=key, value=value) for key, value in (property_filters or {}).items()],
        current_hash=current_hash,
    )
    return pb.BaseCommand(type=_Type.WATCH_SCALABLE_TOPICS, watch_scalable_topics=content)


def watch_scalable_topics_snapshot(watch_id: int, topics: Iterable[str]) -> pb.BaseCommand:
    """All topics that exist now."""
    content = pb.CommandWatchScalableTopicsUpdate(watch_id=watch_id, snapshot=pb.ScalableTopicsSnapshot(topics=topics))
    return pb.BaseCommand(type=_Type.WATCH_SCALABLE_TOPICS_UPDATE, watch_scalable_topics_update=content)


def watch_scalable_topics_diff(watch_id: int, added: Iterable[str], removed: Iterable[str]) -> pb.BaseCommand:
    """Topics that were added and removed since the last update."""
    content = pb.CommandWatchScalableTopicsUpdate(
        watch_id=watch_id, diff=pb.ScalableTopicsDiff(added=added, removed=removed)
    )
    return pb.BaseCommand(type=_Type.WATCH_SCALABLE_TOPICS_UPDATE, watch_scalable_topics_update=content)


def watch_scalable_topics_failed(watch_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """The watch cannot be opened, or cannot continue."""
    content = pb.CommandWatchScalableTopicsUpdate(watch_id=watch_id, error=code, message=message)
    return pb.BaseCommand(type=_Type.WATCH_SCALABLE_TOPICS_UPDATE, watch_scalable_topics_update=content)


def watch_scalable_topics_close(watch_id: int) -> pb.BaseCommand:
    """Ends the watch. Not answered."""
    content = pb.CommandWatchScalableTopicsClose(watch_id=watch_id)
    return pb.BaseCommand(type=_Type.WATCH_SCALABLE_TOPICS_CLOSE, watch_scalable_topics_close=content)
