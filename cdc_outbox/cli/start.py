"""`cdc-outbox start`: the relay, until it is told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_outbox.cli import Command, load_settings, run, settings_options

if TYPE_CHECKING:
    from cdc_outbox.settings import Settings


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox start --slot outbox_slot",
        "cdc-outbox start --init --create-table --bootstrap-servers localhost:9092",
        "cdc-outbox start --until-caught-up",
        "cdc-outbox start --config /etc/cdc-outbox.toml --log-format json --http 0.0.0.0:9464",
    ),
)
@settings_options("postgres", "admin", "outbox", "kafka", "delivery", "limits", "http", "log")
@click.option("--init", "with_init", is_flag=True, help="Do what `cdc-outbox init` does first.")
@click.option(
    "--create-table", is_flag=True, help="With --init: make the default outbox table if there is none."
)
@click.option(
    "--no-backfill", is_flag=True, help="With --init: pass over rows that are in the table already."
)
@click.option(
    "--no-failover", is_flag=True, help="With --init: make no failover slot on PostgreSQL 17 and later."
)
@click.option(
    "--until-caught-up", is_flag=True, help="Exit 0 once all that was committed before is confirmed."
)
@click.option("--accept-gap", is_flag=True, help="Go on past a gap or incident that was named.")
@click.option(
    "--fail-fast", is_flag=True, help="Exit 1 when PostgreSQL or Kafka can't be reached, instead of waiting."
)
def command(
    with_init: bool,
    create_table: bool,
    no_backfill: bool,
    no_failover: bool,
    until_caught_up: bool,
    accept_gap: bool,
    fail_fast: bool,
) -> None:
    """Stream the outbox table's inserts from the slot into Kafka until SIGTERM or SIGINT.

    Waits for PostgreSQL and Kafka if they are away, and as a hot standby while another relay has the slot. Exits 0
    after a clean stop, 1 where a restart may help, 70 for a poison event, 78 where a person has to mend the set-up.
    """
    settings = load_settings("start")
    run(
        _start(
            settings,
            with_init=with_init,
            create_table=create_table,
            no_backfill=no_backfill,
            no_failover=no_failover,
            until_caught_up=until_caught_up,
            accept_gap=accept_gap,
            fail_fast=fail_fast,
        )
    )


async def _start(
    settings: Settings,
    *,
    with_init: bool,
    create_table: bool,
    no_backfill: bool,
    no_failover: bool,
    until_caught_up: bool,
    accept_gap: bool,
    fail_fast: bool,
) -> None:
    import asyncio
    import signal

    from cdc_outbox import log
    from cdc_outbox.errors import DrainExceeded
    from cdc_outbox.relay import Relay
    from cdc_outbox.watch.server import serving

    relay = Relay(settings, accept_gap=accept_gap, until_caught_up=until_caught_up)
    logger = log.get(__name__)
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    signals: list[str] = []

    def told_to_stop(which: signal.Signals) -> None:
        signals.append(which.name)
        if len(signals) == 1:
            logger.info("stopping", signal=which.name)
            relay.stop()
        elif main is not None:
            main.cancel()

    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, told_to_stop, which)
    try:
        async with serving(settings.http, relay.status):
            if with_init:
                from cdc_outbox.postgres.setup import InitOptions, init

                await init(
                    settings,
                    InitOptions(
                        create_table=create_table, backfill=not no_backfill, failover=not no_failover
                    ),
                )
            await relay.run(fail_fast=fail_fast)
    except asyncio.CancelledError:
        raise DrainExceeded(
            f"{signals[-1]} came a second time, before everything in flight was confirmed",
            next="nothing is lost: what was not confirmed is sent again by the next start",
        ) from None
    logger.info("stopped", slot=settings.postgres.slot)
