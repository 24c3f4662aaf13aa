#!/opt/kafka/python/bin/python3
"""Stands for Kafka's program of this name, whose jar isn't among those of the tests: waits for values, and prints them."""

import argparse
import asyncio
import contextlib

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-server", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("--from-beginning", action="store_true", required=True)
parser.add_argument("--max-messages", type=int, required=True)
wish = parser.parse_args()


async def main() -> None:
    consumer = AIOKafkaConsumer(
        wish.topic, bootstrap_servers=wish.bootstrap_server, auto_offset_reset="earliest", metadata_max_age_ms=500
    )
    while True:
        with contextlib.suppress(KafkaConnectionError):
            await consumer.start()
            break
        await asyncio.sleep(0.1)
    for _ in range(wish.max_messages):
        print((await consumer.getone()).value.decode())
    await consumer.stop()


asyncio.run(main())
