from collections.abc import Callable

import pytest

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.conversation import Conversation
from tidewire.protocol.errors import UnsupportedBroker
from tidewire.protocol.features import require_scalable_topics, require_transactions
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


def welcomed_by(features: pb.FeatureFlags) -> Conversation:
    conversation = Conversation(BrokerAddress("b", 1), "test")
    conversation.feed(encode_command(commands.connected("b", features=features)))
    assert conversation.welcomed()
    return conversation


@pytest.mark.parametrize(
    ("require", "feature", "lacking"),
    [
        (require_scalable_topics, "supports_scalable_topics", "does not support scalable topics"),
        (require_transactions, "supports_tc_metadata_discovery", "does not support transactions on scalable topics"),
    ],
)
def test_a_broker_that_lacks_a_feature_is_told_by_name(
    require: Callable[[Conversation], None], feature: str, lacking: str
) -> None:
    features = commands.broker_features()
    require(welcomed_by(features))
    features.ClearField(feature)
    with pytest.raises(UnsupportedBroker, match=f"^pulsar://b:1 {lacking}"):
        require(welcomed_by(features))
