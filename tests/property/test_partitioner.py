"""Any key of any length lands where other producers put it."""

from __future__ import annotations

from zlib import crc32

from aiokafka.partitioner import murmur2 as reference
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_outbox.kafka.partitioner import HASHES, murmur2

keys = st.one_of(st.binary(max_size=80), st.binary(min_size=80, max_size=5000))


@given(keys)
@example(b"\x80\x81\xff")
@example(b"\xff" * 4097)
def test_murmur2_agrees_with_an_independent_one(key: bytes):
    assert murmur2(key) == reference(key) & 0xFFFFFFFF  # type: ignore[no-untyped-call]  # aiokafka's has no types


@given(keys)
def test_hashes_are_stable_and_never_negative(key: bytes):
    for hashed in HASHES.values():
        assert hashed(key) == hashed(bytes(key)) >= 0
    assert HASHES["crc32"](key) == crc32(key)
