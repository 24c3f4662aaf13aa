"""A token that a broker refuses, told as a refusal.

A broker says so in an answer that is no error yet, and ends with one once the client has answered that. aiokafka takes
the first for a success: its connection is cut at the next request, for no reason that it could tell.

https://www.rfc-editor.org/rfc/rfc7628#section-3.2.3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator

if TYPE_CHECKING:
    from aiokafka.abc import AbstractTokenProvider

_HEARD: Final = b"\x01"


class Bearer(OAuthAuthenticator):
    """aiokafka's, which goes on where the broker has something against the token."""

    def __init__(self, *, sasl_oauth_token_provider: AbstractTokenProvider) -> None:
        super().__init__(sasl_oauth_token_provider=sasl_oauth_token_provider)
        self._refused = False

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """What is sent next, and whether an answer is expected; None at the end."""
        if payload and payload.startswith(b"{") and not self._refused:
            self._refused = True
            return _HEARD, True
        sent: tuple[bytes, bool] | None = await super().step(payload)
        return sent


def _authenticator(connection: AIOKafkaConnection) -> Bearer:
    return Bearer(sasl_oauth_token_provider=connection._sasl_oauth_token_provider)


def install() -> None:
    """Have each connection of the client prove itself this way."""
    AIOKafkaConnection.authenticator_oauth = _authenticator  # type: ignore[method-assign]  # it has no other door
