"""What Pulsar serves and this broker does not: 501 with a reason, so that nobody takes it for a typing error.

A path in no table is answered with 404. The paths are those that Pulsar's own administration client sends.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from broker.http.resources import Call, refusing

_GET: Final = ("GET",)
_SET: Final = ("POST", "DELETE")
_ALL: Final = ("GET", "POST", "DELETE")
_EVERY: Final = ("GET", "PUT", "POST", "DELETE")

_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"

_NO_ACCESS: Final = "This broker does not check who a client is, so it grants no permissions."
_NO_REPLICATION: Final = "This broker does not replicate to other clusters."
_NO_QUOTA: Final = "This broker has no backlog quotas. A retention policy limits what it keeps."
_NO_RATES: Final = "This broker does not limit rates. Its memory budgets slow clients that are too fast."
_NO_LIMITS: Final = "This broker has no such limit for single topics or namespaces."
_NO_TTL: Final = "This broker does not expire messages by itself. Call expireMessages, or set a retention policy."
_NO_COMPACTION: Final = "This broker does not compact topics."
_NO_OFFLOAD: Final = "This broker does not move data to other storage."
_NO_DELAY: Final = "This broker does not delay messages."
_DEDUPLICATES: Final = "Deduplication is a setting of the whole broker. Use --deduplication."
_NO_BUNDLES: Final = "This broker has no bundles. It places and moves single topics: see /admin/v2/cluster."
_CREATES: Final = "Clients always may create topics and subscriptions here."
_SCHEMAS: Final = "Rules of schemas cannot be set. Every topic checks that a new schema is compatible."
_NO_CLEANUP: Final = "This broker never deletes a topic by itself."
_NO_BOOKIES: Final = "This broker stores its data itself, without BookKeeper."
_NO_TERMINATION: Final = "Regular topics cannot be terminated here."
_NO_PROPERTIES: Final = "Only scalable topics have properties here, and they are set when the topic is created."
_NO_FILTERS: Final = "This broker does not load filters or other plug-ins."
_SETTINGS: Final = "Settings are read when the broker starts. Change its file or its options, and start it again."

_Table = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
"""Why not, which methods, which paths."""

_TOPIC_CALLS: Final[_Table] = (
    (_NO_ACCESS, _EVERY, ("/permissions", "/permissions/{role}")),
    (_NO_REPLICATION, _ALL, ("/replication", "/subscription/{subscription}/replicatedSubscriptionStatus")),
    (_NO_REPLICATION, ("GET", "PUT", "DELETE"), ("/shadowTopics",)),
    (_NO_QUOTA, _ALL, ("/backlogQuota", "/backlogQuotaMap")),
    (_NO_RATES, _ALL, ("/dispatchRate", "/subscriptionDispatchRate", "/publishRate", "/subscribeRate")),
    (_NO_RATES, _ALL, ("/replicatorDispatchRate", "/{subscription}/dispatchRate")),
    (_NO_LIMITS, _ALL, ("/maxConsumers", "/maxProducers", "/maxConsumersPerSubscription", "/maxSubscriptionsPerTopic")),
    (_NO_LIMITS, _ALL, ("/maxUnackedMessagesOnConsumer", "/maxUnackedMessagesOnSubscription", "/maxMessageSize")),
    (_NO_LIMITS, _ALL, ("/subscriptionTypesEnabled", "/dispatcherPauseOnAckStatePersistent")),
    (_NO_TTL, _ALL, ("/messageTTL", "/subscriptionExpirationTime")),
    (_NO_COMPACTION, ("GET", "PUT"), ("/compaction",)),
    (_NO_COMPACTION, _ALL, ("/compactionThreshold",)),
    (_NO_OFFLOAD, ("GET", "PUT"), ("/offload",)),
    (_NO_OFFLOAD, _ALL, ("/offloadPolicies",)),
    (_NO_DELAY, _ALL, ("/delayedDelivery",)),
    (_DEDUPLICATES, _ALL, ("/deduplicationEnabled", "/deduplicationSnapshotInterval")),
    (_CREATES, _ALL, ("/autoSubscriptionCreation",)),
    (_SCHEMAS, _ALL, ("/schemaValidationEnforced",)),
    (_SCHEMAS, ("GET", "PUT", "DELETE"), ("/schemaCompatibilityStrategy",)),
    (_NO_CLEANUP, _ALL, ("/inactiveTopicPolicies",)),
    (_NO_BOOKIES, _ALL, ("/persistence",)),
    (_NO_BOOKIES, _GET, ("/internal-info",)),
    (_NO_TERMINATION, ("POST",), ("/terminate", "/terminate/partitions")),
    (_NO_PROPERTIES, ("GET", "PUT", "DELETE"), ("/properties",)),
    (_NO_PROPERTIES, ("GET", "PUT"), ("/subscription/{subscription}/properties",)),
    (_NO_FILTERS, _ALL, ("/entryFilters",)),
    ("This broker trims a topic by its retention policy. Set that.", ("POST",), ("/trim",)),
    ("This broker trims a topic by its retention policy. Set that.", ("DELETE",), ("/truncate",)),
    ("Delete the topic's policies one by one. Only retention can be set.", ("DELETE",), ("/policies",)),
    ("A partition is made when it is first used.", ("POST",), ("/createMissedPartitions",)),
    (
        "Look at the subscription's msgBacklog in the topic's stats.",
        ("POST",),
        ("/subscription/{subscription}/analyzeBacklog",),
    ),
)
"""Below the path of a topic."""

_NAMESPACE_CALLS: Final[_Table] = (
    (_NO_ACCESS, _EVERY, ("/permissions", "/permissions/{role}", "/permissions/subscription")),
    (_NO_ACCESS, _EVERY, ("/permissions/subscription/{name}", "/permissions/{name}/{role}")),
    (_NO_ACCESS, ("GET", "POST"), ("/subscriptionAuthMode", "/encryptionRequired")),
    (_NO_REPLICATION, _ALL, ("/replication", "/allowedClusters", "/migration", "/antiAffinity")),
    (_NO_QUOTA, _ALL, ("/backlogQuota", "/backlogQuotaMap")),
    (_NO_RATES, _ALL, ("/dispatchRate", "/subscriptionDispatchRate", "/publishRate", "/subscribeRate")),
    (_NO_RATES, _ALL, ("/replicatorDispatchRate", "/resourcegroup", "/resourcegroup/{name}")),
    (_NO_LIMITS, _ALL, ("/maxTopicsPerNamespace", "/maxSubscriptionsPerTopic", "/maxProducersPerTopic")),
    (_NO_LIMITS, _ALL, ("/maxConsumersPerTopic", "/maxConsumersPerSubscription", "/subscriptionTypesEnabled")),
    (_NO_LIMITS, _ALL, ("/maxUnackedMessagesPerConsumer", "/maxUnackedMessagesPerSubscription")),
    (_NO_LIMITS, _ALL, ("/dispatcherPauseOnAckStatePersistent", "/allowedTopicPropertyKeysForMetrics")),
    (_NO_TTL, _ALL, ("/messageTTL", "/subscriptionExpirationTime")),
    (_NO_COMPACTION, ("GET", "PUT", "DELETE"), ("/compactionThreshold",)),
    (_NO_OFFLOAD, ("GET", "PUT"), ("/offloadThreshold", "/offloadThresholdInSeconds")),
    (_NO_OFFLOAD, ("GET", "PUT", "DELETE"), ("/offloadDeletionLagMs",)),
    (_NO_OFFLOAD, ("GET", "POST"), ("/offloadPolicies",)),
    (_NO_OFFLOAD, ("DELETE",), ("/removeOffloadPolicies",)),
    (_NO_DELAY, _ALL, ("/delayedDelivery",)),
    (_DEDUPLICATES, _ALL, ("/deduplication", "/deduplicationSnapshotInterval")),
    (_CREATES, _ALL, ("/autoTopicCreation", "/autoSubscriptionCreation")),
    (_SCHEMAS, ("GET", "POST"), ("/schemaValidationEnforced", "/isAllowAutoUpdateSchema")),
    (_SCHEMAS, ("GET", "PUT"), ("/schemaCompatibilityStrategy", "/schemaAutoUpdateCompatibilityStrategy")),
    (_NO_CLEANUP, _ALL, ("/inactiveTopicPolicies",)),
    (_NO_BOOKIES, _ALL, ("/persistence", "/persistence/bookieAffinity")),
    (_NO_REPLICATION, _GET, ("/configversion",)),
    (_NO_BUNDLES, _GET, ("/bundles", "/{bundle}/topicHashPositions")),
    (_NO_BUNDLES, ("DELETE",), ("/0x{bundle}",)),
    (_NO_BUNDLES, ("PUT",), ("/unload", "/{bundle}/unload", "/{bundle}/split")),
    (_NO_PROPERTIES, ("GET", "PUT", "DELETE"), ("/properties", "/property/{key}", "/property/{key}/{value}")),
    (_NO_FILTERS, _ALL, ("/entryFilters",)),
    ("Set the policy of each scalable topic, or the broker's settings.", _ALL, ("/scalableTopicAutoScalePolicy",)),
    ("Skip the messages of each topic's subscriptions.", ("POST",), ("/clearBacklog", "/clearBacklog/{name}")),
    ("Skip the messages of each topic's subscriptions.", ("POST",), ("/{bundle}/clearBacklog",)),
    ("Skip the messages of each topic's subscriptions.", ("POST",), ("/{bundle}/clearBacklog/{name}",)),
    ("Delete the subscription of each topic.", ("POST",), ("/unsubscribe/{name}",)),
    ("Delete the subscription of each topic.", ("POST",), ("/{bundle}/unsubscribe/{name}",)),
)
"""Below the path of a namespace."""

_OTHER_CALLS: Final[_Table] = (
    ("Non-persistent topics are not supported.", _EVERY, ("/admin/v2/non-persistent/{rest:path}",)),
    (
        "Look at the schemas themselves. They are records of the metadata store.",
        _GET,
        ("/admin/v2/schemas/{tenant}/{namespace}/{topic}/metadata",),
    ),
    (_NO_REPLICATION, _GET, ("/admin/v2/namespaces/{cluster}/antiAffinity/{group}",)),
    (_NO_ACCESS, ("POST",), ("/admin/v2/namespaces/grantPermissionsOnTopics",)),
    (_NO_ACCESS, ("POST",), ("/admin/v2/namespaces/revokePermissionsOnTopics",)),
    (_SETTINGS, _GET, ("/admin/v2/brokers/configuration", "/admin/v2/brokers/configuration/{which}")),
    (_SETTINGS, ("POST", "DELETE"), ("/admin/v2/brokers/configuration/{which}",)),
    (_SETTINGS, ("POST",), ("/admin/v2/brokers/configuration/{which}/{value}",)),
    (_NO_BOOKIES, _GET, ("/admin/v2/brokers/internal-configuration",)),
    (_NO_QUOTA, _GET, ("/admin/v2/brokers/backlog-quota-check",)),
    (
        "Stop the broker's process. It hands over nothing then; drain it first.",
        ("POST",),
        ("/admin/v2/brokers/shutdown",),
    ),
    ("No broker leads here. Ask /admin/v2/cluster: it shows the brokers.", _GET, ("/admin/v2/brokers/leaderBroker",)),
    (_NO_REPLICATION, _GET, ("/admin/v2/brokers/{cluster}",)),
    (_NO_BUNDLES, _GET, ("/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces",)),
    (_NO_REPLICATION, _EVERY, ("/admin/v2/clusters/{cluster}/{rest:path}",)),
    (_NO_REPLICATION, ("PUT", "POST", "DELETE"), ("/admin/v2/clusters/{cluster}",)),
    ("Ask /metrics.", _EVERY, ("/admin/v2/broker-stats/{rest:path}", "/admin/v2/proxy-stats/{rest:path}")),
    ("There is no proxy here. Ask /metrics.", _EVERY, ("/proxy-stats/{rest:path}",)),
    (_NO_BUNDLES, _EVERY, ("/admin/v2/resource-quotas", "/admin/v2/resource-quotas/{rest:path}")),
    (_NO_RATES, _EVERY, ("/admin/v2/resourcegroups", "/admin/v2/resourcegroups/{rest:path}")),
    (_NO_BOOKIES, _EVERY, ("/admin/v2/bookies/{rest:path}",)),
    ("This broker runs no functions.", _EVERY, ("/admin/v3/functions/{rest:path}", "/admin/v2/worker/{rest:path}")),
    (
        "This broker runs no functions.",
        _EVERY,
        ("/admin/v2/worker-stats/{rest:path}", "/admin/v3/packages/{rest:path}"),
    ),
    ("This broker runs no connectors.", _EVERY, ("/admin/v3/sources/{rest:path}", "/admin/v3/sinks/{rest:path}")),
    ("This broker runs no connectors.", _EVERY, ("/admin/v3/source/{rest:path}", "/admin/v3/sink/{rest:path}")),
    ("Look topics up over Pulsar's protocol. Give clients a pulsar:// address.", _GET, ("/lookup/v2/{rest:path}",)),
)


def calls() -> list[Call]:
    """The calls, each of which is answered with 501."""
    tables = (*_below(_TOPIC, _TOPIC_CALLS), *_below(_NAMESPACE, _NAMESPACE_CALLS), *_OTHER_CALLS)
    return [
        Call(method, path, refusing(reason), reason, is_served=False)
        for reason, methods, paths in tables
        for path in paths
        for method in methods
    ]


def _below(prefix: str, table: _Table) -> Iterator[tuple[str, tuple[str, ...], Iterable[str]]]:
    for reason, methods, paths in table:
        yield reason, methods, [prefix + path for path in paths]
