"""How batches form and leave, and what is confirmable meanwhile."""

from __future__ import annotations

import asyncio
from unittest import mock

from cdc_outbox.kafka import publisher as module
from tests.unit.staged import Stage, T, play


def test_a_lone_row_leaves_at_once_and_is_confirmed_by_the_broker_alone() -> None:
    async def scene(stage: Stage) -> None:
        stage.row()
        assert stage.publisher.inflight_bytes > 0
        await stage.flush()
        assert [sent.values for sent in stage.sent] == [[b"v"]]
        assert stage.ledger.confirmable == 0
        assert stage.publisher.inflight_events == 1
        await stage.reply()
        assert stage.ledger.confirmable == 101
        assert (stage.publisher.inflight_events, stage.publisher.inflight_bytes) == (0, 0)
        assert stage.publisher.published == {T: 1}

    play(scene)


def test_rows_gather_while_a_batch_is_out_and_one_is_out_per_partition() -> None:
    async def scene(stage: Stage) -> None:
        with mock.patch.object(module, "ROUND", 1000.0):
            stage.row(b"1")
            await stage.flush()
            for value in (b"2", b"3"):
                stage.row(value)
                await stage.flush()
            stage.row(b"4", partition=1)
            await stage.flush()
            assert [sent.values for sent in stage.sent] == [[b"1"]]
            await stage.reply()
            assert sorted((sent.partition, sent.values) for sent in stage.sent[1:]) == [
                (0, [b"2", b"3"]),
                (1, [b"4"]),
            ]

    play(scene)


def test_a_slow_partition_holds_up_no_other_for_longer_than_a_round() -> None:
    async def scene(stage: Stage) -> None:
        stage.row(b"1")
        await stage.flush()
        stage.row(b"2", partition=1)
        await stage.flush()
        await asyncio.sleep(module.ROUND * 2)  # the bound: by then the round has ended
        await stage.turn()
        assert [(sent.partition, sent.values) for sent in stage.sent] == [(0, [b"1"]), (1, [b"2"])]

    play(scene)


def test_full_batches_leave_by_themselves_one_after_another() -> None:
    async def scene(stage: Stage) -> None:
        for n in range(10):
            stage.row(b"%d" % n * 100)
        await stage.turn()
        assert len(stage.sent) == 1
        while len(stage.sent[-1].values) > 1 or stage.out:
            await stage.reply()
            await stage.flush()
        assert [value for sent in stage.sent for value in sent.values] == [b"%d" % n * 100 for n in range(10)]
        assert len(stage.sent) >= 3
        assert stage.ledger.confirmable == stage.lsn + 1

    play(scene, "batch.size=500")


def test_no_more_is_out_than_a_request_may_hold() -> None:
    async def scene(stage: Stage) -> None:
        stage.counts["wide"] = 8
        await stage.publisher.prepare("wide")
        for n in range(3):
            for partition in range(8):
                stage.row(b"%d" % n * 700, partition=partition, topic="wide")
        most = 0
        await stage.flush()
        while stage.out:
            most = max(most, len(stage.out))
            await stage.reply()
            await stage.flush()
        assert most == 2
        for partition in range(8):
            mine = [value[:1] for sent in stage.sent if sent.partition == partition for value in sent.values]
            assert mine == [b"0", b"1", b"2"]
        assert stage.ledger.confirmable == stage.lsn + 1

    play(scene, "max.request.size=2000", "batch.size=1000")


def test_nothing_behind_an_open_batch_is_confirmable() -> None:
    async def scene(stage: Stage) -> None:
        stage.row(b"1")
        stage.row(b"2", partition=1)
        await stage.flush()
        await stage.reply(partition=1)
        assert stage.ledger.confirmable == 0
        await stage.reply(partition=0)
        assert stage.ledger.confirmable == 201

    play(scene)


def test_keys_choose_partitions_and_rows_without_a_key_are_spread_by_their_place() -> None:
    async def scene(stage: Stage) -> None:
        for key in (b"a", b"b", b"a", b""):
            stage.row(key, partition=None, key=key)
        for _ in range(40):
            stage.row(b"none", partition=None, key=None)
        await stage.flush()
        by_partition = {sent.partition: sent.values for sent in stage.sent}
        home = next(number for number, held in by_partition.items() if b"a" in held)
        assert by_partition[home].count(b"a") == 2
        assert all(held.count(b"none") > 5 for held in by_partition.values())

    play(scene)
