"""Partitions as Java and librdkafka pick them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, strategies

from cdc_outbox.kafka.partitioner import HASHES, murmur2, remembered

# From the Java client's own test, UtilsTest.testMurmur2; its int is signed.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
def test_murmur2_is_javas(key: bytes):
    assert murmur2(key) == JAVA[key] & 0xFFFFFFFF


def test_the_sign_is_masked_and_not_negated():
    assert HASHES["murmur2"](b"foobar") % 12 == (-790332482 & 0x7FFFFFFF) % 12 != 790332482 % 12


def test_the_empty_key_has_a_partition():
    assert HASHES["murmur2"](b"") == murmur2(b"") & 0x7FFFFFFF
    assert HASHES["crc32"](b"") == 0


def test_crc32_is_librdkafkas():
    # The check value of CRC-32 with polynomial 0xEDB88320.
    assert HASHES["crc32"](b"123456789") == 0xCBF43926


@given(strategies.binary(max_size=300))
def test_machine_code_and_python_agree(key: bytes):
    """The extra `speed` is installed where tests run."""
    assert HASHES["murmur2"](key) == murmur2(key) & 0x7FFFFFFF


def test_a_short_key_is_hashed_once_and_a_long_one_is_not_kept():
    hashed: Counter[bytes] = Counter()

    def hashing(key: bytes) -> int:
        hashed[key] += 1
        return len(key)

    remembering = remembered(hashing, most=10, longest=8)
    for _ in range(3):
        assert [remembering(b"k" * length) for length in (1, 8, 9)] == [1, 8, 9]
    assert hashed == {b"k": 1, b"k" * 8: 1, b"k" * 9: 3}


def test_what_is_remembered_is_bounded_and_right():
    randomly = random.Random(7)
    keys = [randomly.randbytes(8) for _ in range(50)]
    hashed: list[bytes] = []

    def hashing(key: bytes) -> int:
        hashed.append(key)
        return murmur2(key)

    remembering = remembered(hashing, most=10, longest=8)
    for key in keys + keys[:-10]:
        assert remembering(key) == murmur2(key)
    assert hashed == keys + keys[:-10]
    assert remembering(keys[-11]) == murmur2(keys[-11])
    assert len(hashed) == 90
