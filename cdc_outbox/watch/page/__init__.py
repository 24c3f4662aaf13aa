"""The status page at `/`: files of its own, written by hand, that ask nobody but `/status`.

There is no build step and no outside address. The files hold nothing secret: where a token is needed the page itself
asks for it and sends it with `/status`, so its files are served without one.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy that all of it works under."""

_MEDIA_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class File(NamedTuple):
    """A file as it is sent."""

    media_type: str
    content: bytes


@cache
def served() -> dict[str, File]:
    """Path of the request, as `/style.css`, to its file; `/` is the page."""
    return {
        "/" if name == "index.html" else f"/{name}": File(media_type, (files(__name__) / name).read_bytes())
        for name, media_type in _MEDIA_TYPES.items()
    }
