"""`python -m tests.servers.flood PORT CLIENTS SLOW`: scrapers that come all at once, beside clients that never finish.

A process of its own, and plain sockets, so that no client is slow by itself but those that mean it. Prints a JSON
object: an answer's code, or how it failed → how many clients that was.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
from collections import Counter

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNFINISHED = b"GET /metrics HTTP/1.1\r\nX: "


class Client:
    """One connection. One that never finishes comes again when it was cut off."""

    def __init__(self, port: int, said: bytes) -> None:
        self.said = said
        self.port = port
        self.answer = b""
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))

    @property
    def outcome(self) -> str:
        return self.answer[9:12].decode() or "cut off"


def come(port: int, scrapers: int, slow: int) -> Counter[str]:
    """Let them come, and wait until each scraper has an outcome."""
    poll = select.epoll()
    clients: dict[int, Client] = {}

    def enter(said: bytes) -> None:
        client = Client(port, said)
        clients[client.socket.fileno()] = client
        poll.register(client.socket, select.EPOLLOUT)

    outcomes: Counter[str] = Counter()

    def attend(patience: float) -> None:
        """Let those speak who were let in, and hear those who got an answer."""
        for descriptor, event in poll.poll(patience):
            client = clients[descriptor]
            try:
                if event & select.EPOLLOUT:
                    client.socket.sendall(client.said)
                    poll.modify(descriptor, select.EPOLLIN)
                    continue
                part = client.socket.recv(1 << 16)
                client.answer += part
                outcome = None if part else client.outcome
            except OSError as error:
                outcome = type(error).__name__
            if outcome is not None:
                poll.unregister(descriptor)
                client.socket.close()
                if client.said is SCRAPE:
                    outcomes[outcome] += 1
                else:
                    enter(UNFINISHED)

    for _ in range(slow):
        enter(UNFINISHED)
    for _ in range(scrapers):
        enter(SCRAPE)
        attend(0)
    while outcomes.total() < scrapers:
        attend(-1)
    return outcomes


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(come(*map(int, sys.argv[1:]))))
