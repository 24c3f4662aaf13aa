"""Removing rows of the outbox table that are old and acknowledged, and naming those that are old and aren't.

First the table is read once, a piece at a time, and counted; then the rows that may go are deleted in batches. After
each statement comes a pause in proportion to it, so that the database has the better part of its time for others,
however slow it is.

Nothing goes while a pending slot is undecided, one that is made meanwhile included: then what is proven is asked again,
and what stays is counted anew.

What is old and not acknowledged stays, and says that something is wrong: no relay streams, or it is far behind.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from cdc_outbox.errors import CdcOutboxError, SetupError, UsageError
from cdc_outbox.postgres import expired, reading_right
from cdc_outbox.postgres.acknowledged import Undecided, acknowledged, unless_undecided
from cdc_outbox.postgres.chosen import NAMES_TIME
from cdc_outbox.postgres.connection import connect_control, execute
from cdc_outbox.postgres.expired import Count, Expired
from cdc_outbox.postgres.partitions import Partitions
from cdc_outbox.postgres.standing import standing
from cdc_outbox.repair.planned import planned
from cdc_outbox.settings.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.acknowledged import Acknowledged
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.expired import Kept, Piece
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Plan
    from cdc_outbox.table.values import Field

    Answer = TypeVar("Answer")

APPLICATION_NAME: Final = "cdc-outbox cleanup"

BATCH: Final = 1000
"""Rows that go in one transaction."""

READ: Final = "pieces read"
REMOVED: Final = "rows removed"

SHARE: Final = 0.5
"""Part of the time in which a statement of ours runs."""


Told: TypeAlias = "Callable[[str, int, int], None]"
"""Hears of progress: what is counted, how many are done, and of how many, 0 where nobody knows."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which rows go, and how. `older_than`: seconds; `batch`: rows at a time; `share`: part of the time, up to 1.

    `partitions`: whole partitions go, and no rows of others. `left_out`: rows that the settings leave out go too,
    though the table doesn't say that they were sent.
    """

    older_than: float
    batch: int = BATCH
    share: float = SHARE
    partitions: Literal["drop", "detach"] | None = None
    left_out: bool = False


@dataclass(slots=True)
class Cleaned:
    """What became of one table's old rows. `by`: the column that told their age, None where age didn't count.

    `found` is from before. `partitions`: those that went, or would go, with their rows. `why` says for each slot that
    isn't past the rows that stayed how it is, and what to do.
    """

    table: TableName
    by: str | None
    found: Count = field(default_factory=Count)
    removed: int = 0
    partitions: tuple[TableName, ...] = ()
    why: tuple[tuple[str, str], ...] = ()


class Unacknowledged(CdcOutboxError):
    """Rows are older than they should get, and not acknowledged: something is wrong with their delivery."""

    @classmethod
    def of(cls, cleaned: Sequence[Cleaned], age: float) -> Unacknowledged:
        """The error for tables some of whose old rows stayed."""
        parts, steps = [], []
        for each in cleaned:
            names = ", ".join(_named(row) for row in each.found.oldest)
            more = ", …" if each.found.undelivered > len(each.found.oldest) else ""
            reasons = "; ".join(problem for problem, _ in each.why)
            parts.append(
                f"{each.found.undelivered} rows of {each.table} that are {old(age)} are not acknowledged, and stay: "
                f"{names}{more}; {reasons}"
            )
            steps += [step for _, step in each.why]
        return cls("; ".join(parts), next="; ".join(dict.fromkeys(steps)))


def old(age: float) -> str:
    """An age in words."""
    return f"older than {format_duration(age)}" if age else "of any age"


def _named(row: Kept) -> str:
    name = row.id if row.id is not None else "without an id"
    return name if row.time is None else f"{name} ({row.time})"


async def clean(
    settings: Settings,
    rule: Rule,
    *,
    dry_run: bool = False,
    told: Told = lambda what, done, total: None,
) -> list[Cleaned]:
    """Remove what is old and acknowledged from each table, or with `dry_run` only count.

    `told` hears what of a table is done after each statement, and of how many: pieces read, then rows removed. Raises
    SetupError for a table whose rows have no age, MappingError, MissingRight, PostgresUnavailable.
    """
    relay = await connect_control(settings.postgres, application_name=APPLICATION_NAME)
    try:
        owner = await connect_control(settings.postgres, application_name=APPLICATION_NAME, admin=True)
        try:
            await execute(owner, reading_right.ALL_ROWS)  # from the last look at a partition too
            return [
                await _table(settings, relay, owner, table, rule, dry_run=dry_run, told=told)
                for table in settings.outbox.tables
            ]
        finally:
            await owner.close()
    finally:
        await relay.close()


async def _table(
    settings: Settings,
    relay: Connection,
    owner: Connection,
    table: TableName,
    rule: Rule,
    *,
    dry_run: bool,
    told: Told,
) -> Cleaned:
    plan = await planned(settings, owner, table)
    by = aged(plan, rule.older_than)
    if rule.partitions is not None and by is None:
        raise UsageError(
            "--older-than 0s removes rows of any age, and --partitions removes those that are old",
            next="give an age, such as --older-than 7d",
        )
    done = Cleaned(table, by.name if by is not None else None)
    before = await expired.moment(owner, rule.older_than)
    ours = None if rule.left_out else expired.ours(plan, settings.outbox)
    of = partial(Expired, owner, id_column=plan.layout.id, time=by, before=before, ours=ours)
    while True:
        proven = await acknowledged(relay, owner, settings.postgres.slot, table)
        done.found = Count(done.removed)
        with suppress(Undecided):
            if rule.partitions is None or by is None:
                await _rows(relay, of(proven), rule, done, dry_run=dry_run, told=told)
            else:
                parts = Partitions(owner, proven, time=by, before=before, ours=ours)
                await _partitions(relay, parts, of, rule, done, dry_run=dry_run, told=told)
            break
    if done.found.undelivered:
        done.why = await standing(relay, proven)
    return done


async def _rows(
    relay: Connection, rows: Expired, rule: Rule, done: Cleaned, *, dry_run: bool, told: Told
) -> None:
    async def removed(piece: Piece) -> int:
        async with unless_undecided(relay):
            return await rows.delete(piece, rule.batch)

    full: list[Piece] = []
    pieces = await rows.pieces()
    for read, piece in enumerate(pieces, 1):
        count = await gently(rule.share, partial(rows.count, piece))
        done.found += count
        if count.delivered:
            full.append(piece)
        told(READ, read, len(pieces))
    for piece in full if not dry_run else ():
        went = rule.batch
        while went == rule.batch:
            went = await gently(rule.share, partial(removed, piece))
            done.removed += went
            told(REMOVED, done.removed, done.found.delivered)


async def _partitions(
    relay: Connection,
    parts: Partitions,
    of: Callable[[Acknowledged], Expired],
    rule: Rule,
    done: Cleaned,
    *,
    dry_run: bool,
    told: Told,
) -> None:
    """Only partitions with no row that isn't acknowledged go; of the others no row does."""
    take_out = parts.drop if rule.partitions == "drop" else parts.detach
    for partition in await parts.old():
        rows = of(replace(parts.acknowledged, table=partition.name))
        count = await _counted(rows, rule.share)
        if count.undelivered or count.left_out:
            if partition.out and not dry_run:
                await parts.put_back(partition)
            done.found += replace(count, delivered=0)
            continue
        if not dry_run:
            async with unless_undecided(relay):
                gone = await take_out(partition)
            if not gone:
                done.found += replace(await _counted(rows, rule.share), delivered=0)
                continue
            done.removed += count.delivered
            told(REMOVED, done.removed, 0)
        done.found += count
        done.partitions += (partition.name,)


async def _counted(rows: Expired, share: float) -> Count:
    """All old rows, a piece at a time, so that nobody waits for us who wants the table to itself."""
    found = Count()
    for piece in await rows.pieces():
        found += await gently(share, partial(rows.count, piece))
    return found


def aged(plan: Plan, older_than: float) -> Field | None:
    """The column that tells a row's age: when it was made, else when it was sent. None where any age will do.

    Raises SetupError for a table without such a column: then only every acknowledged row can be removed.
    """
    if not older_than:
        return None
    sent = plan.bookkeeping.sent
    found = plan.optional.get("created_at") or (
        sent.field if sent is not None and sent.by == "time" else None
    )
    if found is None:
        raise SetupError(
            f"{plan.table} has no column that says how old a row is, so none is known to be older than "
            f"{format_duration(older_than)}",
            next=f"name it with {NAMES_TIME}; or remove every acknowledged row, of whatever age: cdc-outbox cleanup "
            f"--older-than 0s; or add a column: alter table {plan.table} add column created_at timestamptz default "
            "now();",
        )
    return found


async def gently(share: float, work: Callable[[], Awaitable[Answer]]) -> Answer:
    """Do it, then leave the database alone for as long as it takes to have had only `share` of the time."""
    began = time.monotonic()
    answer = await work()
    await asyncio.sleep((time.monotonic() - began) * (1 / share - 1))
    return answer
