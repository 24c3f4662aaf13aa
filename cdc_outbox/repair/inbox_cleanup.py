"""Removing rows of the inbox, by which a consumer knows an event that comes twice.

Nothing here knows whether an event can still come again: a person says after which age none does. A row that goes too
early lets an event be applied twice, so the age has to be longer than the topics keep their records, and than anybody
replays or goes back with a consumer's offsets.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cdc_outbox.postgres import inbox
from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.postgres.expired import moment
from cdc_outbox.repair.cleanup import REMOVED, gently

if TYPE_CHECKING:
    from cdc_outbox.repair.cleanup import Rule, Told
    from cdc_outbox.settings import PostgresSettings


async def clean_inbox(
    settings: PostgresSettings,
    rule: Rule,
    *,
    dry_run: bool = False,
    told: Told = lambda what, done, total: None,
) -> tuple[int, int]:
    """How many rows were older, and how many of them were removed. `told` hears of both after each batch.

    Raises SetupError where there is no inbox, MissingRight, PostgresUnavailable.
    """
    owner = await connect_control(settings, application_name=inbox.APPLICATION_NAME)
    try:
        await inbox.require(owner)
        before = await moment(owner, rule.older_than)
        total, removed = await inbox.count(owner, before), 0
        went = rule.batch if not dry_run else 0
        while went == rule.batch:
            went = await gently(rule.share, partial(inbox.delete, owner, before, rule.batch))
            removed += went
            told(REMOVED, removed, total)
        return total, removed
    finally:
        await owner.close()
