"""The status page with a relay that says whatever the test wants: its files, their policy and `/status`."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cdc_outbox.watch.page import POLICY, served
from tests.servers.process import free_port


class Stage:
    """A server on a port of its own, which it keeps when it is away for a while."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}
        self.code = 200
        self.once: int | None = None
        """The code of the next answer alone."""
        self.token: str | None = None
        self.asked: list[str] = []
        self.awake = threading.Event()
        self.awake.set()
        self._port = free_port()
        self._server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def play(self, status: dict[str, Any]) -> None:
        """Say this at `/status` from now on; come back if away."""
        self.status = status
        if self._server is not None:
            return
        stage = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, media_type, content = stage.answer(self.path, self.headers.get("Authorization"))
                self.send_response(code)
                self.send_header("Content-Type", media_type)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Security-Policy", POLICY)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def answer(self, path: str, authorization: str | None) -> tuple[int, str, bytes]:
        """Code, media type and content for a request."""
        self.asked.append(path)
        if path in served():
            return 200, *served()[path]
        if path != "/status":
            return 404, "application/json", b"{}"
        self.awake.wait()
        if self.token is not None and authorization != f"Bearer {self.token}":
            return 401, "application/json", b"{}"
        code, self.once = self.once or self.code, None
        return code, "application/json", json.dumps(self.status).encode()

    def leave(self) -> None:
        """Stop listening: the relay is gone."""
        self.awake.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
