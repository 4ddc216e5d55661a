"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the settings of topics, and a few of the broker."""

from collections.abc import Collection, Mapping
from typing import Final

from broker.kafka.errors import EXPECTED, Refused, code_of
from broker.kafka.kafka_topic import LIMIT_OTHERWISE, read_only
from broker.kafka.requests import Api, Asked
from broker.kafka.topic_settings import BOOLEAN_TYPE, INT_TYPE, OF_BROKER, STRING_TYPE, TopicSettings
from broker.kafka.topics import KafkaTopics
from broker.partitioned_topics import Alter, Configs
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.administration import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ChangedConfig,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
)

TOPIC: Final = 2
BROKER: Final = 4
"""The types of resources that have settings here."""

SET: Final = 0
DELETE: Final = 1
"""The changes that are served. No setting here is a list that could be appended to."""


class ConfigHandler:
    """Serves the requests about settings on one connection."""

    def __init__(self, topics: KafkaTopics, settings: TopicSettings, node_id: int, broker_configs: Configs) -> None:
        """Set up. `broker_configs` are what clients may know of this broker's settings, by Kafka's names."""
        self._topics = topics
        self._settings = settings
        self._node_id = node_id
        self._broker_configs = broker_configs

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {
            ApiKey.DESCRIBE_CONFIGS: Api(DescribeConfigsRequest, DescribeConfigsResponse, 1, 4, self._describe),
            ApiKey.ALTER_CONFIGS: Api(AlterConfigsRequest, AlterConfigsResponse, 0, 2, self._replace),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(
                IncrementalAlterConfigsRequest, AlterConfigsResponse, 0, 1, self._change
            ),
        }

    async def _describe(self, request: DescribeConfigsRequest, _asked: Asked) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            kind, name = resource.resource_type, resource.resource_name
            try:
                configs = await self._described(kind, name, resource.configuration_keys)
                results.append(DescribeConfigsResult(ErrorCode.NONE, None, kind, name, configs))
            except EXPECTED as error:
                results.append(DescribeConfigsResult(code_of(error), str(error), kind, name))
        return DescribeConfigsResponse(results=tuple(results))

    async def _described(
        self, kind: int, name: str, wanted: Collection[str] | None
    ) -> tuple[DescribeConfigsResourceResult, ...]:
        if kind == BROKER:
            if name not in {"", str(self._node_id)}:
                raise Refused(ErrorCode.INVALID_REQUEST, f"This is broker {self._node_id}. Ask broker {name} itself.")
            found = [
                DescribeConfigsResourceResult(
                    key,
                    value,
                    read_only=True,
                    config_source=OF_BROKER,
                    config_type=_type_of(value),
                    documentation=None,
                )
                for key, value in self._broker_configs.items()
            ]
        else:
            _require_topic(kind)
            given, is_free = await self._topics.settings(name)
            found = [
                DescribeConfigsResourceResult(
                    one.name,
                    one.value,
                    read_only=not (is_free and one.setting.is_free),
                    config_source=one.source,
                    config_type=one.setting.type,
                    documentation=None,
                )
                for one in self._settings.shown(given)
            ]
        return tuple(config for config in found if wanted is None or config.name in wanted)

    async def _replace(self, request: AlterConfigsRequest, _asked: Asked) -> AlterConfigsResponse:
        results = []
        for resource in request.resources:
            given = [(config.name, config.value) for config in resource.configs]

            def replaced(_known: Configs, given: Collection[tuple[str, str | None]] = given) -> dict[str, str]:
                return {name: self._settings.checked(name, value) for name, value in given if value is not None}

            place = resource.resource_type, resource.resource_name
            results.append(await self._altered(*place, replaced, is_trial=request.validate_only))
        return AlterConfigsResponse(responses=tuple(results))

    async def _change(self, request: IncrementalAlterConfigsRequest, _asked: Asked) -> AlterConfigsResponse:
        results = []
        for resource in request.resources:

            def changed(known: Configs, changes: Collection[ChangedConfig] = resource.configs) -> dict[str, str]:
                return self._changed(known, changes)

            place = resource.resource_type, resource.resource_name
            results.append(await self._altered(*place, changed, is_trial=request.validate_only))
        return AlterConfigsResponse(responses=tuple(results))

    async def _altered(self, kind: int, name: str, alter: Alter, *, is_trial: bool) -> AlterConfigsResourceResponse:
        try:
            _require_topic(kind)
            given, is_free = await self._topics.settings(name)
            if not is_free:
                raise read_only(name, LIMIT_OTHERWISE)
            alter(given)
            if not is_trial:
                await self._topics.configure(name, alter)
        except EXPECTED as error:
            return AlterConfigsResourceResponse(code_of(error), str(error), kind, name)
        return AlterConfigsResourceResponse(ErrorCode.NONE, None, kind, name)

    def _changed(self, known: Configs, changes: Collection[ChangedConfig]) -> dict[str, str]:
        made = dict(known)
        for change in changes:
            if change.config_operation == DELETE:
                self._settings.checked(change.name, None)
                made.pop(change.name, None)
            elif change.config_operation == SET:
                made[change.name] = self._settings.checked(change.name, change.value)
            else:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{change.name} is no list. Set or delete it.")
        return made


def _type_of(value: str) -> int:
    """The type of a setting of the broker."""
    if value in {"true", "false"}:
        return BOOLEAN_TYPE
    return INT_TYPE if value.isdigit() else STRING_TYPE


def _require_topic(kind: int) -> None:
    if kind != TOPIC:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Only topics have settings that can be changed here. Restart a broker instead.",
        )
