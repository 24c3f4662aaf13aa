"""Any key of any length lands where other producers put it."""

from __future__ import annotations

from zlib import crc32

from aiokafka.partitioner import murmur2 as reference
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_outbox.kafka.partitioner import crc32_partition, murmur2, murmur2_partition

keys = st.one_of(st.binary(max_size=80), st.binary(min_size=80, max_size=5000))


@given(keys)
@example(b"\x80\x81\xff")
@example(b"\xff" * 4097)
def test_murmur2_agrees_with_an_independent_one(key: bytes):
    assert murmur2(key) == reference(key) & 0xFFFFFFFF  # type: ignore[no-untyped-call]  # aiokafka's has no types


@given(keys, st.integers(1, 100_000))
def test_partitions_are_within_range_and_stable(key: bytes, count: int):
    for partition in (murmur2_partition, crc32_partition):
        assert 0 <= partition(key, count) < count
        assert partition(key, count) == partition(bytes(key), count)
    assert crc32_partition(key, count) == crc32(key) % count
