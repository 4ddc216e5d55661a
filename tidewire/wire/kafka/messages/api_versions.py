"""ApiVersions: which requests a broker serves, in which versions. A client asks it first."""

from dataclasses import dataclass

from tidewire.wire.kafka.fields import array, boolean, int16, int32, int64, string


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    """Who asks (KIP-511)."""

    client_software_name: str = string(since=3)
    client_software_version: str = string(since=3)


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """A request that is served, in the versions from `min_version` to `max_version`, both included."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@dataclass(frozen=True, slots=True)
class SupportedFeature:
    """The levels of a feature that this broker supports."""

    name: str = string(since=3)
    min_version: int = int16(since=3)
    max_version: int = int16(since=3)


@dataclass(frozen=True, slots=True)
class FinalizedFeature:
    """The levels of a feature that are in force in the whole cluster."""

    name: str = string(since=3)
    max_version_level: int = int16(since=3)
    min_version_level: int = int16(since=3)


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    """The requests that are served, and the features (KIP-584)."""

    error_code: int = int16()
    api_keys: tuple[ApiVersion, ...] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1)
    supported_features: tuple[SupportedFeature, ...] = array(SupportedFeature, since=3, tag=0)
    finalized_features_epoch: int = int64(since=3, default=-1, tag=1)
    finalized_features: tuple[FinalizedFeature, ...] = array(FinalizedFeature, since=3, tag=2)
    zk_migration_ready: bool = boolean(since=3, tag=3)
