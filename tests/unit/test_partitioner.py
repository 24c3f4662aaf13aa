"""Partitions as Java and librdkafka pick them."""

from __future__ import annotations

import pytest

from cdc_outbox.kafka.partitioner import HASHES, murmur2

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
