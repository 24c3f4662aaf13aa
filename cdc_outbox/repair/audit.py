"""The table and the topics compared: is each row's event there, once, in order, and nothing else?

What is asked in which order decides that nothing which is under way is called missing or foreign:

1. what the witness proves to have been delivered;
2. where the topics end: what was proven in 1 lies before;
3. a snapshot of the table: it has the row of each message that lies before those ends, but for a commit that the
   stream brought before the server showed it;
4. the rows; the messages up to the ends of 2;
5. the table again, by the ids of messages whose row the snapshot lacks.

A row that isn't found and isn't proven delivered is under way, as long as the slot is there and stands where the
witness says. Without that, nothing will bring it any more: it is missing. Where no relay has run, or one has just
begun, there is no proof yet: then such rows are looked for in the slot, or waited for where a relay has it, and those
that don't come within `PATIENCE` are missing.

A topic that was trimmed can't tell of rows from before its first record, nor a compacted one of any row: they are
unknown. The log is read from an hour before the window, since a commit comes after its row was written.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from cdc_outbox import log, memory
from cdc_outbox.errors import SetupError
from cdc_outbox.instant import iso_us, since_epoch
from cdc_outbox.kafka.reading import Place, Reading, Span, reading
from cdc_outbox.postgres import chosen, server, slip, slot, table_rows, table_wanted, witness
from cdc_outbox.postgres.acknowledged import acknowledged
from cdc_outbox.postgres.audited import AuditedRows
from cdc_outbox.postgres.chosen import NAMES_TIME, Chosen, Window
from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.postgres.zoneless import zoneless
from cdc_outbox.repair import books as entry
from cdc_outbox.repair import slot_search
from cdc_outbox.repair.books import Books, Reader, ids_placed
from cdc_outbox.repair.judgement import Judge, Rules
from cdc_outbox.repair.planned import planned
from cdc_outbox.repair.report import Report
from cdc_outbox.repair.second_look import SecondLook
from cdc_outbox.repair.spool import kept_in
from cdc_outbox.settings.units import format_size
from cdc_outbox.table import template
from cdc_outbox.table.compiler import DEFAULT_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import TypeAlias, TypeVar

    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.repair.books import IdFrom
    from cdc_outbox.repair.findings import Findings
    from cdc_outbox.repair.judgement import Stray
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.plan import Plan

    Answer = TypeVar("Answer")

_log = log.get(__name__)

APPLICATION_NAME: Final = "cdc-outbox audit"

MARGIN_MS: Final = 3_600_000
"""Topics are read from so long before the window; longer by what a clock is ahead that the times may go by."""

PATIENCE: Final = 10.0
"""Seconds for rows that may be under way, where nothing proves what was delivered."""

HOPELESS: Final = 20_000
"""Messages without a row in a row, after which the table isn't asked about further ones."""

Told: TypeAlias = "Callable[[str, int, int], None]"
"""Hears what is counted, how many are done, and of how many (0: not known)."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for.

    `topics`: read these instead of those that rows name. `every`: rows that a rule leaves out, or that another relay
    marked as sent, are missing too when they aren't found. `settled`: nothing is under way. `limit`: findings of each
    kind that are kept.
    """

    window: Chosen = field(default_factory=Chosen)
    topics: tuple[str, ...] = ()
    ids_from: tuple[IdFrom, ...] = ()
    every: bool = False
    settled: bool = False
    foreign_ok: bool = False
    twice_ok: bool = False
    directory: Path | None = None
    limit: int = 20


async def audit(settings: Settings, wish: Wish, told: Told) -> Report:
    """Compare them. `told` hears how far it is.

    Raises what is wrong with the set-up, UsageError, PostgresUnavailable, KafkaUnavailable.
    """
    async with AsyncExitStack() as stack:
        owner = await connect_control(settings.postgres, application_name=APPLICATION_NAME, admin=True)
        stack.push_async_callback(owner.close)
        topics = await stack.enter_async_context(reading(settings.kafka))
        stack.enter_context(memory.seldom_searched())
        return await _Audit(settings, wish, told, owner, topics).run()


class _Audit:
    """One audit, from its first question to its report."""

    def __init__(
        self, settings: Settings, wish: Wish, told: Told, owner: Connection, topics: Reading
    ) -> None:
        self._settings = settings
        self._wish = wish
        self._told = told
        self._owner = owner
        self._topics = topics
        self._notes: list[str] = []
        self._elsewhere = 0
        self._counts: Counter[str] = Counter()
        self._unacknowledged: Literal["missing", "under way", "doubtful"] = "under way"
        self._part = "--since TIME --until TIME"
        """The flags by which a part of the table is audited."""
        self._idle = False
        """No relay streams from the slot, which stands as it should."""
        self._lacking: str | None = None
        """Why it isn't proven what was delivered."""
        self._margin_ms = MARGIN_MS
        self._meant: str | None = None
        """The flags of the window, where it may have been meant by another clock than the one that was read."""

    async def run(self) -> Report:
        settings, wish = self._settings, self._wish
        window = await chosen.window(self._owner, wish.window)
        plans = [await planned(settings, self._owner, table) for table in settings.outbox.tables]
        timed = all("created_at" in plan.optional for plan in plans)
        if not timed:
            self._part = f"{NAMES_TIME} {self._part}"
        sources = await self._sources(plans, window)
        await self._heed_clocks(plans, window)
        begins, ends = await self._bounds(plans, window)
        async with AsyncExitStack() as stack:
            async with table_rows.snapshot(
                settings.postgres,
                settings.outbox.tables,
                application_name=APPLICATION_NAME,
                like=self._owner,
            ) as conn:
                expected = sum(ends[place] - begins[place] for place in ends)
                books = await self._unwanted(conn, self._read_rows(conn, sources, expected))
                stack.enter_context(closing(books))
                nothing = (
                    None if books.rows else await self._unwanted(conn, self._nothing(conn, sources, window))
                )
            judge = Judge(books, self._rules(plans, window), limit=wish.limit, directory=wish.directory)
            stack.enter_context(closing(judge))
            spans = self._spans(plans, books, begins, ends)
            horizons = await self._enter_messages(spans, books, judge)
            await self._judge(judge, books, plans, horizons)
            await self._await(judge, books, plans, ends)
            findings = judge.findings
            idle = settings.postgres.slot if self._idle and findings.under_way.count > 0 else None
            self._explain(findings, idle, nothing)
            named = dict.fromkeys([*self._named(plans), *books.topics], -1)
            named |= dict.fromkeys([span.place.topic for span in spans], 0) | self._counts
            return Report(
                tables=settings.outbox.tables,
                since=window.since,
                until=window.until,
                topics=named,
                rows=books.rows,
                messages=books.messages,
                unjudged=books.unjudged,
                unnamed_rows=books.unnamed_rows,
                elsewhere=self._elsewhere,
                findings=findings,
                idle_slot=idle,
                twice_ok=wish.twice_ok,
                meant=self._meant,
                later="--since TIME" if timed else f"{NAMES_TIME} --since TIME",
                notes=self._notes,
            )

    def _rules(self, plans: list[Plan], window: Window) -> Rules:
        wish = self._wish
        return Rules(
            since=None if window.since is None else since_epoch(window.since),
            until=None if window.until is None else since_epoch(window.until),
            unacknowledged="missing" if wish.settled else self._unacknowledged,
            sent=wish.every or self._settings.outbox.mark == "update",
            left_out=wish.every,
            may_lack_rows=wish.foreign_ok,
            keyed=all(plan.layout.partition is None for plan in plans),
            shared=len(plans) > 1,
        )

    def _explain(self, findings: Findings, idle: str | None, nothing: str | None) -> None:
        """Say beside the findings what a person has to know of them; `idle`: the slot that nobody reads from."""
        if findings.assumed:
            self._notes.append(
                f"nothing proves what was delivered: {self._lacking}; {findings.assumed:,} rows were too many to "
                "look for, and count as under way"
            )
        if idle is not None:
            self._notes.append(f"no relay streams from the slot {idle}: what is under way waits in it")
        if nothing is not None:
            self._notes.append(nothing)
        if self._lacking is not None and findings.missing.count:
            self._notes.append(f"some of what is missing may be under way: {self._lacking}")

    # The table

    async def _sources(self, plans: list[Plan], window: Window) -> list[AuditedRows]:
        """What to read; and find out what rows are that aren't acknowledged."""
        settings = self._settings
        name = settings.postgres.slot
        relay = await connect_control(settings.postgres, application_name=APPLICATION_NAME)
        try:
            proofs = [await acknowledged(relay, self._owner, name, plan.table) for plan in plans]
            there, pending = await slot.inspect_both(relay, name)
            if there is None and pending is not None and not self._wish.settled:
                await slip.require_slot(
                    relay, there, settings.postgres, settings.outbox.tables, pending=pending
                )
            verdict = witness.judge(
                name, await witness.read(relay, name), there, await server.identity(relay)
            )
        finally:
            await relay.close()
        lacking = next((proof.lacking for each in proofs for proof in each.proofs if proof.lacking), None)
        if there is None:
            self._unacknowledged, self._lacking = "missing", f"there is no replication slot {name}"
        elif there.lost:
            self._unacknowledged, self._lacking = "missing", f"the slot {name} is lost"
        elif verdict.error is not None:
            self._unacknowledged, self._lacking = "missing", str(verdict.error)
        else:
            self._idle = not there.active
            if lacking is not None:
                self._unacknowledged, self._lacking = "doubtful", lacking
        if self._wish.settled:
            self._lacking = None
        return [AuditedRows(plan, window, proof) for plan, proof in zip(plans, proofs, strict=True)]

    async def _heed_clocks(self, plans: list[Plan], window: Window) -> None:
        """Say how times without a zone are read, and read the topics from as early as they may mean."""
        found = [each for plan in plans if (each := await zoneless(self._owner, plan, window)) is not None]
        self._notes += map(str, found)
        self._meant = next((each.meant for each in found if each.meant), None)
        self._margin_ms += max([0, *(each.ahead for each in found)]) * 1000

    async def _nothing(self, conn: Connection, sources: list[AuditedRows], window: Window) -> str:
        """What was looked at, where there is no row in it, seen through the snapshot of `conn`."""
        tables = " or ".join(str(source.plan.table) for source in sources)
        if not window:
            return f"there is no row in {tables}"
        times = [us for source in sources if (us := await source.newest(conn)) is not None]
        newest = f"; the newest was written {iso_us(max(times))}" if times else ", nor before or after"
        return f"there is no row of this window in {tables}{newest}"

    def _books(self, sources: list[AuditedRows], expected: int) -> Books:
        settings, wish = self._settings, self._wish
        return Books(
            expected,
            wish.directory,
            commit_times=all(source.plan.layout.timestamp is None for source in sources),
            ids_from=[*wish.ids_from, *(find for source in sources for find in ids_placed(source.plan))],
            scoped=len(settings.outbox.tables) > 1,
        )

    async def _read_rows(self, conn: Connection, sources: list[AuditedRows], messages: int) -> Books:
        """Enter all rows; `messages`: how many messages will come at most."""
        total = sum([await source.count(conn) for source in sources])
        self._require_room(total * entry.BYTES[0])
        books = self._books(sources, total + messages)
        try:
            for source in sources:
                reader = Reader.of(source.plan)
                async for proven, chunk in source.portions(conn):
                    books.enter_rows(reader, chunk, entry.ACKNOWLEDGED if proven else 0)
                    self._told("rows", books.rows, total)
                    await asyncio.sleep(0)
        except BaseException:
            books.close()
            raise
        return books

    async def _unwanted(self, conn: Connection, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Do the work unless somebody comes to wait for the table: then raise TableWanted."""
        pid = conn.info.backend_pid
        async with table_wanted.watched(
            self._owner,
            lambda: pid,
            next=lambda: f"let it be done, then audit again; or less of the table at a time: {self._part}",
        ) as looking:
            return await table_wanted.unless(looking, work)

    # The topics

    def _named(self, plans: list[Plan]) -> list[str]:
        """The topics that are known without a row."""
        if self._wish.topics:
            return list(self._wish.topics)
        return [name for plan in plans if (name := plan.layout.topics.fixed) is not None]

    async def _bounds(self, plans: list[Plan], window: Window) -> tuple[dict[Place, int], dict[Place, int]]:
        """Where the partitions of all topics that may be named begin and end for us."""
        there = await self._topics.topics()
        wanted = set(self._named(plans))
        if self._wish.topics and (absent := sorted(wanted - there.keys())):
            raise SetupError(
                f"the cluster has no topic {absent[0]}", next="name a topic that it has with --topic-name"
            )
        if not self._wish.topics:
            found = [_prefix(plan, self._settings.outbox.topic) for plan in plans]
            prefixes = tuple(prefix for prefix in found if prefix is not None)
            wanted |= {name for name in there if name.startswith(prefixes)}
        places = [
            Place(name, number) for name in sorted(wanted & there.keys()) for number in range(there[name])
        ]
        ends = await self._topics.ends(places)
        if window.since is None:
            begins = await self._topics.starts(places)
        else:
            begins = await self._topics.at(
                places, max(0, since_epoch(window.since) // 1000 - self._margin_ms)
            )
        return begins, {place: max(end, begins[place]) for place, end in ends.items()}

    def _spans(
        self, plans: list[Plan], books: Books, begins: dict[Place, int], ends: dict[Place, int]
    ) -> list[Span]:
        """What is read of the topics that the rows, the settings or a person name."""
        named = set(self._named(plans))
        if not self._wish.topics:
            named |= set(books.topics)
        if not named:
            self._notes.append("no row names a topic, so none was read (--topic-name NAME reads one)")
        spans = [Span(place, begins[place], end) for place, end in ends.items() if place.topic in named]
        absent = sorted(named - {span.place.topic for span in spans})
        if absent:
            self._notes.append(
                f"the cluster has no topic {', '.join(absent[:5])}{' …' if len(absent) > 5 else ''}"
            )
        return spans

    async def _enter_messages(self, spans: list[Span], books: Books, judge: Judge) -> dict[str, float]:
        total = sum(span.end - span.begin for span in spans)
        self._require_room(total * entry.BYTES[1])
        before = await self._topics.starts([span.place for span in spans])
        first: dict[Place, int] = {}
        async for place, messages in self._topics.records(spans):
            if place not in first and (streamed := entry.first_streamed(messages)) is not None:
                first[place] = streamed.timestamp
            self._counts[place.topic] += len(messages)
            for nameless in books.enter_messages(*place, messages):
                judge.nameless(nameless)
            self._told("messages", books.messages, total)
        return await self._horizons(spans, before, first)

    async def _horizons(
        self, spans: list[Span], before: dict[Place, int], first: dict[Place, int]
    ) -> dict[str, float]:
        """By topic, the µs before which it can't tell what was there.

        `first`: ms of the first message of each partition that wasn't sent from the table. One that was may bear a time
        from long before those in front of it.
        """
        after = await self._topics.starts([span.place for span in spans])
        horizons: dict[str, float] = {}
        for span in spans:
            place, topic = span.place, span.place.topic
            if after[place] > before[place] and after[place] > span.begin:
                horizon = float("inf")  # trimmed while it was read
            elif before[place] == 0 or before[place] < span.begin:
                continue
            elif place in first:
                horizon = first[place] * 1000.0
            else:
                horizon = float("inf")
            horizons[topic] = max(horizons.get(topic, 0.0), horizon)
        if horizons:
            self._notes.append(
                f"older records are gone from {', '.join(sorted(horizons)[:5])}: rows from before can't be looked for"
            )
        compacted = await self._topics.compacted({span.place.topic for span in spans})
        if compacted:
            self._notes.append(
                f"{', '.join(sorted(compacted)[:5])} keeps only the newest message of a key: "
                "a row that isn't found can't be called missing"
            )
        return horizons | dict.fromkeys(compacted, float("inf"))

    # The judgement

    async def _judge(self, judge: Judge, books: Books, plans: list[Plan], horizons: dict[str, float]) -> None:
        buckets = len(books.events)
        for at in judge.suspect():
            self._told("buckets compared", at + 1, 2 * buckets)
            await asyncio.sleep(0)
        lookups = [SecondLook(self._owner, plan) for plan in plans]
        for again in lookups:
            await again.prepare()
        hopeless = 0
        for at, strays in enumerate(judge.events(horizons)):
            if strays and hopeless < HOPELESS:
                known = await self._known(lookups, strays)
                hopeless = 0 if known else hopeless + len(strays)
                self._elsewhere += sum(each.id in known for each in strays)
                strays = [each for each in strays if each.id not in known]  # noqa: PLW2901 - what is left of them
            for stray in strays:
                judge.foreign(stray)
            self._told("buckets compared", buckets + at + 1, 2 * buckets)
            await asyncio.sleep(0)
        judge.late()

    async def _await(self, judge: Judge, books: Books, plans: list[Plan], ends: dict[Place, int]) -> None:
        """Look whether events of doubtful rows wait in the slot, or have come since the topics' ends were asked for.

        A slot that nobody reads from tells all: then nothing is waited for.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        if judge.doubtful and self._idle:
            found = await slot_search.waiting(self._settings, books, judge.doubtful)
            for key in found or ():
                judge.arrived(key)
            if found is not None:
                deadline = loop.time()
        while judge.doubtful:
            there = await self._topics.topics()
            names = {*self._named(plans), *books.topics} & there.keys()
            places = [Place(name, number) for name in names for number in range(there[name])]
            now = await self._topics.ends(places)
            spans = [Span(place, ends.get(place, 0), end) for place, end in now.items()]
            async for place, messages in self._topics.records(spans):
                for key in books.keys(place.topic, messages):
                    judge.arrived(key)
            ends |= now
            if loop.time() > deadline:
                break
            if judge.doubtful:
                await asyncio.sleep(0.2)
        judge.give_up()

    async def _known(self, lookups: list[SecondLook], strays: list[Stray]) -> set[bytes]:
        """The ids of those that a table has a row for now."""
        ids = {each.id for each in strays}
        known: set[bytes] = set()
        for again in lookups:
            known |= await again.find(ids - known)
        return known

    def _require_room(self, needed: int) -> None:
        """Raises SetupError where the disk lacks the room that the books will take."""
        where = kept_in(self._wish.directory)
        try:
            free = shutil.disk_usage(where).free
        except OSError as error:
            raise SetupError(
                f"records can't be kept in {where}: {(error.strerror or str(error)).lower()}",
                next="name a directory with --spool DIR",
            ) from error
        if free < needed:
            raise SetupError(
                f"the audit takes {format_size(needed)} in {where}, which has {format_size(free)} left",
                next=f"name a directory with more room: --spool DIR; or audit less at a time: {self._part}",
            )


def _prefix(plan: Plan, configured: str | None) -> str | None:
    """What each topic of a table's rows begins with; None where there is only one topic."""
    if plan.layout.topics.fixed is not None:
        return None
    if configured is not None:
        return template.parse(configured)[0][0]
    return "" if "topic" in plan.needed or "topic" in plan.optional else DEFAULT_TOPIC
