"""F18: what real servers streamed decodes to what was written, on every major version.

`tests/data/record.py` holds the scenario and makes the recordings; `tests/data/expected.py` is what they must
say.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from cdc_outbox.errors import ProtocolViolation
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import pgoutput, protocol
from cdc_outbox.postgres.pgoutput import Begin, Commit, Insert
from cdc_outbox.postgres.protocol import EPOCH_US, KEEPALIVE, XLOG, XLOG_HEADER
from tests.data.expected import EVERYTHING, inserts_only, transactions_of
from tests.data.record import SCENARIO

DATA = Path(__file__).parents[1] / "data"
VERSIONS = (14, 15, 16, 17, 18)
RECORDINGS = [f"postgresql-{version}-{name}" for version in VERSIONS for name in ("inserts", "everything")]


def frames_of(recording: str) -> list[bytes]:
    """The CopyData frames of a recording."""
    return [bytes.fromhex(line) for line in (DATA / f"{recording}.hex").read_text().splitlines()]


def payloads_of(recording: str) -> list[bytes]:
    """The pgoutput messages of a recording, still as bytes."""
    return [frame[XLOG_HEADER:] for frame in frames_of(recording) if frame[0] == XLOG]


def test_the_expectation_covers_the_scenario():
    assert list(EVERYTHING) == list(SCENARIO)


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_arrives_as_written(version: int):
    found = transactions_of(map(pgoutput.decode, payloads_of(f"postgresql-{version}-everything")))
    assert found == [transaction for step in EVERYTHING.values() for transaction in step]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_publication_of_inserts_sends_inserts_and_nothing_else(version: int):
    found = transactions_of(map(pgoutput.decode, payloads_of(f"postgresql-{version}-inserts")))
    assert found == inserts_only(transaction for step in EVERYTHING.values() for transaction in step)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_servers_before_15_send_empty_transactions(version: int):
    messages = list(map(pgoutput.decode, payloads_of(f"postgresql-{version}-inserts")))
    empty = [
        after
        for before, after in pairwise(messages)
        if isinstance(before, Begin) and isinstance(after, Commit)
    ]
    assert bool(empty) == (version < 15)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_every_frame_encodes_to_the_bytes_it_came_from(recording: str):
    for frame in frames_of(recording):
        if frame[0] == KEEPALIVE:
            assert protocol.encode_keepalive(protocol.decode_keepalive(frame)) == frame
        else:
            xlog = protocol.decode_xlog(frame)
            assert protocol.encode_xlog(xlog) == frame
            assert pgoutput.decode(xlog.payload).encode() == xlog.payload


@pytest.mark.parametrize("recording", RECORDINGS)
def test_the_hot_helpers_read_what_the_decoder_reads(recording: str):
    for frame in frames_of(recording):
        if frame[0] != XLOG:
            continue
        match pgoutput.decode(memoryview(frame)[XLOG_HEADER:]):
            case Begin(final_lsn, commit_us, xid):
                assert pgoutput.begin_at(frame, XLOG_HEADER) == (final_lsn, commit_us, xid)
            case Commit(_, commit_lsn, end_lsn, commit_us):
                assert pgoutput.commit_at(frame, XLOG_HEADER) == (commit_lsn, end_lsn, commit_us)
            case Insert(oid, values):
                assert pgoutput.insert_relation_at(frame, XLOG_HEADER) == oid
                assert pgoutput.insert_values_at(frame, XLOG_HEADER) == values


@pytest.mark.parametrize("recording", RECORDINGS)
def test_positions_and_clocks_are_what_the_acknowledgement_relies_on(recording: str):
    frames = frames_of(recording)
    begin: Begin | None = None
    last_end = LSN(0)
    for message in map(pgoutput.decode, payloads_of(recording)):
        if isinstance(message, Begin):
            assert begin is None
            assert message.final_lsn >= last_end
            begin = message
        elif isinstance(message, Commit):
            assert begin is not None
            assert (begin.final_lsn, begin.commit_us) == (message.commit_lsn, message.commit_us)
            assert message.end_lsn > message.commit_lsn
            last_end, begin = message.end_lsn, None
    assert begin is None
    assert frames[-1][0] == KEEPALIVE
    keepalive = protocol.decode_keepalive(frames[-1])
    assert keepalive.end >= last_end
    assert EPOCH_US < keepalive.sent_us < EPOCH_US + 200 * 365 * 24 * 60 * 60 * 1_000_000


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_recorded_message_cut_anywhere_is_refused(recording: str):
    for payload in payloads_of(recording):
        for cut in range(min(len(payload), 400)):
            with pytest.raises(ProtocolViolation):
                pgoutput.decode(payload[:cut])


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("replacement", [0x00, 0x7F, 0xFF])
def test_a_recorded_message_with_any_byte_replaced_is_read_or_refused(recording: str, replacement: int):
    for payload in payloads_of(recording):
        for at in range(min(len(payload), 400)):
            changed = bytearray(payload)
            changed[at] = replacement
            try:
                pgoutput.decode(bytes(changed))
                pgoutput.insert_values_at(bytes(changed), 0)
            except ProtocolViolation:
                continue
