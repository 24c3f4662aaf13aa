"""What is answered to which request: a function of its head and of what is known already. No request causes SQL.

| path | says | who may ask |
|---|---|---|
| `/livez` | the event loop turns; the absence of a server doesn't fail it, for no restart would cure that | all |
| `/readyz` | the relay streams, or stands by | all; its reason on loopback, elsewhere with the token |
| `/healthz` | the health by the last sample; 503 where that is critical, or too old | with the token, if there is one |
| `/metrics` | the metrics, in Prometheus' text format | likewise |
| `/status` | all that is known, as JSON | likewise; where others than this machine may ask, only with a token |
| `/` | the page that draws it | all; but only where `/status` is served |

A browser can't be told to send a token with an address. So the page itself, which holds no data, comes without one,
asks for it where `/status` answers 401, and keeps it for as long as its tab is open.

What takes time to gather is kept for a moment, so that no number of requests is more work than a few a second.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import orjson

from cdc_outbox import log
from cdc_outbox.log import plain
from cdc_outbox.watch import exposition, page, status
from cdc_outbox.watch.health import Level
from cdc_outbox.watch.http import Answer, names_loopback, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.state import Status
    from cdc_outbox.watch.exposition import CollectorRegistry
    from cdc_outbox.watch.history import History
    from cdc_outbox.watch.http import Request
    from cdc_outbox.watch.sampler import Sampler
    from cdc_outbox.watch.token import Token

_log = log.get(__name__)

MISSED_BEAT: Final = 10.0
"""Seconds without a turn of the event loop's heartbeat that make the process count as dead."""

KEPT: Final = 0.25
"""Seconds for which an answer is given again."""


class Answers:
    """The answers of one relay. `redact` takes secrets out of all that is said."""

    def __init__(
        self,
        state: Status,
        sampler: Sampler,
        history: History,
        metrics: CollectorRegistry,
        redact: Callable[[str], str],
        *,
        loopback: bool,
        token: Token | None,
    ) -> None:
        self._state = state
        self._sampler = sampler
        self._history = history
        self._metrics = metrics
        self._redact = redact
        self._loopback = loopback
        self._token = token
        self._shows = loopback or token is not None
        self._open: dict[str, Callable[[Request], Answer]] = {"/livez": self._livez, "/readyz": self._readyz}
        self._guarded: dict[str, Callable[[], Answer]] = {
            "/healthz": self._healthz,
            "/metrics": self._metrics_text,
            "/status": self._status,
        }
        self._kept: dict[str, tuple[float, Answer]] = {}
        self._faults: set[str] = set()

    def answer(self, head: bytes) -> bytes:
        """The whole response to a request's head."""
        request = parse(head)
        if request is None:
            return _said(400, error="not an HTTP/1 request").encode(body=True)
        if request.method not in ("GET", "HEAD"):
            return _said(405, {"Allow": "GET, HEAD"}, error="GET and HEAD only").encode(body=True)
        try:
            answer = self._answer(request)
        except Exception as error:
            if repr(error) not in self._faults and len(self._faults) < 10:
                self._faults.add(repr(error))
                _log.error("a request could not be answered", path=request.path, fault=repr(error))
            answer = _said(500, error="a fault of cdc-outbox: see its log")
        return answer.encode(body=request.method == "GET")

    def _answer(self, request: Request) -> Answer:
        if self._loopback and not names_loopback(request):
            return _said(403, error="this Host is not served on loopback")
        path = request.path
        if path in self._open:
            return self._open[path](request)
        guarded = path in self._guarded
        file = None if guarded else page.served().get(path)
        if not guarded and file is None:
            return _said(404, error=f"there are {', '.join((*self._open, *self._guarded, '/'))}")
        if (file is not None or path == "/status") and not self._shows:
            return _said(
                403, error="the status page is off: others than this machine may ask, and no token is set"
            )
        if file is not None:
            return Answer(200, file.content, file.media_type, page.POLICY)
        if self._token is not None and not self._knows_token(request):
            return _said(
                401, {"WWW-Authenticate": 'Bearer realm="cdc-outbox"'}, error="the token is missing or wrong"
            )
        return self._fresh(path)

    def _knows_token(self, request: Request) -> bool:
        return self._token is not None and self._token.matches(request.only("authorization"))

    def _fresh(self, path: str) -> Answer:
        """The answer, gathered now or a moment ago."""
        now = time.monotonic()
        at, answer = self._kept.get(path, (-KEPT, None))
        if answer is None or now - at >= KEPT:
            answer = self._guarded[path]()
            self._kept[path] = now, answer
        return answer

    def _livez(self, _request: Request) -> Answer:
        alive = time.monotonic() - self._state.beat < MISSED_BEAT
        return _said(200 if alive else 503, status="alive" if alive else "stuck")

    def _readyz(self, request: Request) -> Answer:
        state = self._state.state
        why = (
            {"reason": self._redact(self._state.reason)}
            if self._loopback or self._knows_token(request)
            else {}
        )
        return _said(200 if state.ready else 503, state=state.value, **why)

    def _healthz(self) -> Answer:
        health = self._sampler.health
        if health is None:
            return _said(503, status=Level.UNKNOWN.value, summary="no sample was taken yet")
        document = plain(health.document(), self._redact)
        return _json(503 if health.status is Level.CRITICAL else 200, document)

    def _metrics_text(self) -> Answer:
        return Answer(200, exposition.text(self._metrics), exposition.CONTENT_TYPE)

    def _status(self) -> Answer:
        return _json(200, status.document(self._state, self._sampler.health, self._history, self._redact))


def _said(code: int, extra: dict[str, str] | None = None, /, **words: str) -> Answer:
    return _json(code, words, extra)


def _json(code: int, document: object, extra: dict[str, str] | None = None) -> Answer:
    return Answer(code, orjson.dumps(document) + b"\n", extra=extra or {})
