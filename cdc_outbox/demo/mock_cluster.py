"""A process with librdkafka's mock cluster in it: one broker that keeps its records in memory.

`python -m cdc_outbox.demo.mock_cluster TOPIC...` prints the address, then obeys `down` and `up`, one a line, and
ends with its standard input. While it is down its connections are closed and new ones refused, as with a broker that
was stopped; what it has stays, as on a broker's disk. To clients it speaks Kafka's protocol, idempotent producers and
groups included; it can't create topics by request, and doesn't look at sequence numbers.

The functions are those of librdkafka's `rdkafka_mock.h`, found in the library that confluent-kafka brings along. They
are public, and called experimental there.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

PARTITIONS: Final = 3

_BROKER: Final = 1
_PRODUCER: Final = 0


def _library() -> Any:
    import confluent_kafka.cimpl

    # Symbols are looked for in what this module was linked with, wherever the wheel keeps it.
    library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", number, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        ("rd_kafka_mock_broker_set_down", number, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_up", number, [pointer, ctypes.c_int32]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def main() -> None:
    """Make the cluster and its topics, then obey."""
    library = _library()
    error = ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(conf, b"log_level", b"0", error, len(error))
    client = library.rd_kafka_new(_PRODUCER, conf, error, len(error))
    if not client:
        raise SystemExit(error.value.decode())
    cluster = library.rd_kafka_mock_cluster_new(client, 1)
    for topic in sys.argv[1:]:
        if library.rd_kafka_mock_topic_create(cluster, topic.encode(), PARTITIONS, 1):
            raise SystemExit(f"topic {topic} can't be made")
    print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    orders = {"down": library.rd_kafka_mock_broker_set_down, "up": library.rd_kafka_mock_broker_set_up}
    for line in sys.stdin:
        order = line.strip()
        if orders[order](cluster, _BROKER):
            raise SystemExit(f"the broker can't be set {order}")
        print(f"is {order}", flush=True)


if __name__ == "__main__":
    main()
