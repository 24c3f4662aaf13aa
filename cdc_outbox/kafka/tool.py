"""How a remedy calls Kafka's own tools for the cluster that the settings name, ready to be pasted.

A cluster that demands proof of who comes takes it from the tool as well: in a file of Kafka's properties, an
administrator's, which only a person can name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdc_outbox.settings import KafkaSettings

PARTITIONS: Final = 12
"""Partitions of a topic that a person makes by our remedy: room for as many consumers of a group."""


def address(settings: KafkaSettings, server: str | None = None) -> str:
    """The options that lead a tool to the cluster. `server`: one that is known to answer, else the list's first."""
    first = settings.bootstrap_servers.partition(",")[0].strip()
    secured = settings.client.get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT"
    return f"--bootstrap-server {server or first}" + (" --command-config FILE" if secured else "")


def create(where: str, topic: str) -> str:
    """The command that makes a topic; `where` is the cluster's `address`. Later partitions would move keys."""
    return f"kafka-topics.sh {where} --create --topic {topic} --partitions {PARTITIONS}"


def principal(settings: KafkaSettings) -> str:
    """Who we are in the cluster's rights; NAME where only the cluster knows."""
    return f"User:{settings.client.get('sasl.username') or 'NAME'}"
