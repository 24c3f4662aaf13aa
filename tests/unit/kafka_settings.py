"""Settings of `[kafka]` with options of the client, short to write down."""

from __future__ import annotations

from cdc_outbox.settings.model import ClientOptions, KafkaSettings, TopicSettings


def settings(bootstrap: str = "localhost:9092", **options: str) -> KafkaSettings:
    """Settings with client options, whose dots are written `__`."""
    return KafkaSettings(
        bootstrap_servers=bootstrap,
        client=ClientOptions({name.replace("__", "."): value for name, value in options.items()}),
        partitioner="murmur2",
        topics=TopicSettings(create=False, partitions=1, replication_factor=-1, config={}),
        unknown_topic="hold",
        on_partition_change="warn",
    )
