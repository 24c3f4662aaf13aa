"""When a position is confirmed, and when it must not wait any longer."""

from __future__ import annotations

from collections.abc import Callable

from psycopg.sql import SQL

from tests.servers.kafka import KafkaBroker
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.wait import eventually


def test_rows_that_waited_out_an_outage_are_confirmed_without_further_traffic(
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """A round that confirmed less than was received once made the next rounds blind to the rest."""
    # With a short time-out the relay tells often what it has received.
    server = make_postgres(settings={"wal_sender_timeout": "2s"})
    server.execute("create table noise (n int)")
    pipeline = make_pipeline(server, own_kafka).prepare(1).init()
    pipeline.start()
    writer = pipeline.writer()
    writer.write(1)
    pipeline.wait_confirmed(pipeline.end_of_wal())

    own_kafka.pause()
    server.execute("insert into noise values (1)")
    passed = pipeline.end_of_wal()
    pipeline.wait_heard(passed)
    writer.write(1)
    pipeline.wait_heard(pipeline.end_of_wal())
    pipeline.wait_round()
    pipeline.wait_round()
    own_kafka.resume()
    eventually(
        lambda: pipeline.confirmed() > passed, 30, lambda: f"{passed} passed:\n{pipeline.relay.text()}"
    )


def test_tables_that_are_not_ours_put_no_confirmation_off(
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """Whose each of them is has to be asked: that once put the next round off by a third of a second a table."""
    pipeline = make_pipeline(make_postgres(), own_kafka).prepare(1)
    pipeline.sql(
        SQL("create publication outbox_pub for all tables"),
        SQL(
            "do $$ begin for n in 1..200 loop execute format('create table other_%s (n int)', n); end loop; end $$"
        ),
    )
    pipeline.init().start()
    pipeline.sql(
        SQL(
            "do $$ begin for n in 1..200 loop execute format('insert into other_%s values (1)', n); end loop; end $$"
        )
    )
    pipeline.writer().write(1)
    pipeline.wait_confirmed(pipeline.end_of_wal(), 20)
