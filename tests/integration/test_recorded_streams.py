"""The recordings that the decoder is tested on are still what servers of each version stream."""

from __future__ import annotations

import pytest

from cdc_outbox.postgres import pgoutput
from cdc_outbox.postgres.pgoutput import AnyMessage
from cdc_outbox.postgres.protocol import XLOG, decode_xlog
from tests.data.expected import EVERYTHING, inserts_only, transactions_of
from tests.data.record import record
from tests.servers.postgres import Postgres


@pytest.fixture
def messages(postgres_version: Postgres) -> dict[str, list[AnyMessage]]:
    """A fresh recording, decoded: the messages by name of the publication."""
    return {
        name: [pgoutput.decode(decode_xlog(frame).payload) for frame in frames if frame[0] == XLOG]
        for name, frames in record(postgres_version.dsn("postgres")).items()
    }


def test_f18_a_fresh_recording_says_the_same(messages: dict[str, list[AnyMessage]]):
    expected = [transaction for step in EVERYTHING.values() for transaction in step]
    assert transactions_of(messages["everything"]) == expected
    assert transactions_of(messages["inserts"]) == inserts_only(expected)
