"""Settings, the cluster's brokers, and their disks."""

from dataclasses import dataclass

from tidewire.wire.kafka.fields import INT32, STRING, array, boolean, int8, int16, int32, int64, string


@dataclass(frozen=True, slots=True)
class DescribeConfigsResource:
    """A topic (type 2) or broker (type 4) whose settings are asked for. None means all of them."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: tuple[str, ...] | None = array(STRING, nullable_since=0)


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest:
    """Asks for settings."""

    resources: tuple[DescribeConfigsResource, ...] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


@dataclass(frozen=True, slots=True)
class DescribeConfigsSynonym:
    """Another place where a setting could have its value from."""

    name: str = string(since=1)
    value: str | None = string(since=1, nullable_since=1)
    source: int = int8(since=1)


@dataclass(frozen=True, slots=True)
class DescribeConfigsResourceResult:
    """A setting, its value, and where that comes from."""

    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    config_source: int = int8(since=1, default=-1)
    is_sensitive: bool = boolean()
    synonyms: tuple[DescribeConfigsSynonym, ...] = array(DescribeConfigsSynonym, since=1)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable_since=3)


@dataclass(frozen=True, slots=True)
class DescribeConfigsResult:
    """The settings of one resource."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: tuple[DescribeConfigsResourceResult, ...] = array(DescribeConfigsResourceResult)


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse:
    """The settings."""

    throttle_time_ms: int = int32()
    results: tuple[DescribeConfigsResult, ...] = array(DescribeConfigsResult)


@dataclass(frozen=True, slots=True)
class ReplacedConfig:
    """A setting with its new value."""

    name: str = string()
    value: str | None = string(nullable_since=0)


@dataclass(frozen=True, slots=True)
class ReplacedConfigs:
    """All settings of one resource."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: tuple[ReplacedConfig, ...] = array(ReplacedConfig)


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    """Replaces all settings of resources. What is not named gets its default."""

    resources: tuple[ReplacedConfigs, ...] = array(ReplacedConfigs)
    validate_only: bool = boolean()


@dataclass(frozen=True, slots=True)
class AlterConfigsResourceResponse:
    """What became of the settings of one resource."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()


@dataclass(frozen=True, slots=True)
class AlterConfigsResponse:
    """What became of the settings. Both ways to change them have this response."""

    throttle_time_ms: int = int32()
    responses: tuple[AlterConfigsResourceResponse, ...] = array(AlterConfigsResourceResponse)


@dataclass(frozen=True, slots=True)
class ChangedConfig:
    """A change of a setting: set (0), delete (1), append (2) or subtract (3)."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_since=0)


@dataclass(frozen=True, slots=True)
class ChangedConfigs:
    """The changes of one resource."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: tuple[ChangedConfig, ...] = array(ChangedConfig)


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest:
    """Changes some settings of resources (KIP-339)."""

    resources: tuple[ChangedConfigs, ...] = array(ChangedConfigs)
    validate_only: bool = boolean()


@dataclass(frozen=True, slots=True)
class DescribeClusterRequest:
    """Asks for the cluster's brokers (type 1 of endpoints)."""

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2)


@dataclass(frozen=True, slots=True)
class DescribeClusterBroker:
    """A broker."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)
    is_fenced: bool = boolean(since=2)


@dataclass(frozen=True, slots=True)
class DescribeClusterResponse:
    """The cluster."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    endpoint_type: int = int8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: tuple[DescribeClusterBroker, ...] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-0x80000000)


@dataclass(frozen=True, slots=True)
class DescribableLogDirTopic:
    """Partitions of one topic whose sizes are asked for."""

    topic: str = string()
    partitions: tuple[int, ...] = array(INT32)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest:
    """Asks for the broker's disks. None means all partitions."""

    topics: tuple[DescribableLogDirTopic, ...] | None = array(DescribableLogDirTopic, nullable_since=0)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsPartition:
    """A partition's size in bytes, and by how many records it lags."""

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


@dataclass(frozen=True, slots=True)
class DescribeLogDirsTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: tuple[DescribeLogDirsPartition, ...] = array(DescribeLogDirsPartition)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResult:
    """A disk and what is on it."""

    error_code: int = int16()
    log_dir: str = string()
    topics: tuple[DescribeLogDirsTopic, ...] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=-1)
    usable_bytes: int = int64(since=4, default=-1)


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResponse:
    """The disks."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: tuple[DescribeLogDirsResult, ...] = array(DescribeLogDirsResult)
