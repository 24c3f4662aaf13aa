"""`cdc-outbox start`: the relay, until it is told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_outbox.cli import Command, load_settings, run, settings_options, with_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.postgres.blocker import Blocker
    from cdc_outbox.postgres.steps import InitOptions, Step
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
@settings_options(
    "postgres", "admin", "outbox", "kafka", "delivery", "limits", "cleanup", "http", "health", "otel", "log"
)
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
    options = None
    if with_init:
        from cdc_outbox.postgres.steps import InitOptions

        options = InitOptions(create_table=create_table, backfill=not no_backfill, failover=not no_failover)
    relay_options = {"accept_gap": accept_gap, "until_caught_up": until_caught_up, "fail_fast": fail_fast}
    run(_start(settings, options, **relay_options))


async def _start(settings: Settings, options: InitOptions | None, **relay_options: bool) -> None:
    import asyncio
    import signal

    from cdc_outbox import log, memory
    from cdc_outbox.cli import ending
    from cdc_outbox.ended import ended
    from cdc_outbox.errors import DrainExceeded
    from cdc_outbox.relay import Relay
    from cdc_outbox.watch.watching import watching

    logger = log.get(__name__)

    def told(step: Step) -> None:
        by_owner = {"sql": step.sql} if step.status == "failed" else {}
        logger.info("init", step=step.name, status=step.status, object=step.object, **by_owner)

    def waiting(blockers: Sequence[Blocker]) -> None:
        logger.warning("init waits for open transactions", blockers=[str(blocker) for blocker in blockers])

    async def set_up() -> None:
        if options is not None:
            from cdc_outbox.postgres.setup import init

            await init(settings, options, told=told, waiting=waiting)

    memory.keep_flat()
    memory.settle()
    relay = Relay(settings, set_up=set_up, **relay_options)
    beside = [asyncio.create_task(memory.tidy(), name="tidy")]
    if settings.cleanup.older_than is not None:
        from cdc_outbox.repair.upkeep import upkeep

        keeping = upkeep(settings, settings.cleanup.older_than, relay.status)
        beside.append(asyncio.create_task(keeping, name="cleanup"))
    main, loop = asyncio.current_task(), asyncio.get_running_loop()
    signals: list[str] = []
    settled = False

    def told_to_stop(which: signal.Signals) -> None:
        signals.append(which.name)
        if len(signals) == 1:
            logger.info("stopping", signal=which.name)
            relay.stop()
        elif main is not None and not settled:
            main.cancel()

    def caught(number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(told_to_stop, signal.Signals(number))

    # The loop's own handlers give way to the default one for a moment, which ends the process, before it is another.
    before = {which: signal.signal(which, caught) for which in ending.SIGNALS}
    try:
        async with watching(settings, relay.status, repeat=with_flags):
            try:
                await relay.run()
            finally:
                settled = True  # one more signal changes nothing
                if signals:
                    ending.settled()
                else:
                    for which, handler in before.items():
                        signal.signal(which, handler)
    except asyncio.CancelledError:
        if len(signals) < 2:
            raise  # nobody told us to
        raise DrainExceeded(
            f"{signals[-1]} came a second time, before everything in flight was confirmed",
            next="nothing is lost: what was not confirmed is sent again by the next start",
        ) from None
    finally:
        await ended(*beside)
    logger.info("stopped", slot=settings.postgres.slot)
