"""What the publisher remembers of keys: hashes, of short ones, and not too many; never another partition for it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from aiokafka.partitioner import murmur2 as reference

from cdc_outbox.kafka import publisher as module
from tests.unit.staged import Stage, T, play


def hashed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """How often each key is hashed from now on."""
    counted: Counter[bytes] = Counter()
    real = stage.publisher._hash

    def count(key: bytes) -> int:
        counted[key] += 1
        return real(key)

    monkeypatch.setattr(stage.publisher, "_hash", count)
    return counted


def test_a_key_is_hashed_once_unless_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    short, longest, long = b"k", b"k" * 256, b"k" * 257

    async def scene(stage: Stage) -> None:
        counted = hashed(stage, monkeypatch)
        for _ in range(3):
            for key in (short, longest, long):
                stage.row(partition=None, key=key)
        assert counted == {short: 1, longest: 1, long: 3}

    play(scene)


@pytest.mark.parametrize("length", [8, 256, 1000])
def test_what_is_kept_is_bounded(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HASHES_KEPT", 100)

    async def scene(stage: Stage) -> None:
        most = 0
        for n in range(1000):
            stage.row(partition=None, key=b"%d" % n * length)
            most = max(most, len(stage.publisher._hashes))
        assert most <= 100
        kept = stage.publisher._hashes
        assert all(len(key) <= module._HASHED_KEY for key in kept)

    play(scene)


def test_a_remembered_hash_leads_where_a_fresh_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after there were too many, for keys of any length, and by the arithmetic of the Java client."""
    monkeypatch.setattr(module, "_HASHES_KEPT", 10)
    randomly = random.Random(7)
    keys = [randomly.randbytes(randomly.randrange(400)) for _ in range(50)]
    visits = [key for _ in range(4) for key in randomly.sample(keys, len(keys)) for _ in range(2)]

    async def scene(stage: Stage) -> None:
        stage.counts[T] = 7
        await stage.publisher.prepare(T)
        for key in visits:
            stage.row(key, partition=None, key=key)
        while stage.ledger.unsettled:
            await stage.flush()
            for _ in list(stage.out):
                await stage.reply()
        went = {(sent.partition, value) for sent in stage.sent for value in sent.values}
        expected = {
            ((reference(key) & 0x7FFFFFFF) % 7, key)  # type: ignore[no-untyped-call]  # aiokafka's has no types
            for key in keys
        }
        assert went == expected
        assert sum(len(sent.values) for sent in stage.sent) == len(visits)

    play(scene)
