"""`python -m tests.servers.flood PORT CLIENTS SLOW`: scrapers that come all at once, beside clients that never finish.

A process of its own, so that its clients are quick. Prints a JSON object: an answer's code → how many clients got it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from collections import Counter


async def _scrape(port: int) -> str:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except OSError as error:
        return type(error).__name__
    return answer[9:12].decode() or "cut off"


async def _never_finish(port: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nX: ")
            await reader.read()
            writer.close()


async def _come(port: int, clients: int, slow: int) -> Counter[str]:
    annoying = [asyncio.create_task(_never_finish(port)) for _ in range(slow)]
    codes = Counter(await asyncio.gather(*(_scrape(port) for _ in range(clients))))
    for each in annoying:
        each.cancel()
    await asyncio.gather(*annoying, return_exceptions=True)
    return codes


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asyncio.run(_come(*map(int, sys.argv[1:])))))
