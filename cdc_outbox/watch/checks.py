"""From a sample to a judgement: every signal against its thresholds, the culprit, and one next step. Pure.

Two lags are kept apart. What is unconfirmed is delivery: the relay, Kafka, or nobody. What is kept beyond that is disk:
somebody's open transaction or another slot, which is named and not blamed on the relay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable
from cdc_outbox.postgres import slip, synchronous
from cdc_outbox.postgres import slot as slots
from cdc_outbox.postgres import witness as witnesses
from cdc_outbox.postgres.remedy import accept_gap, recover
from cdc_outbox.postgres.server import Server
from cdc_outbox.postgres.witness import Absent, Witness
from cdc_outbox.settings.likeness import likeness, nearest
from cdc_outbox.watch import culprit as culprits
from cdc_outbox.watch import summary as summaries
from cdc_outbox.watch import words
from cdc_outbox.watch.forecast import NOISE, Outlook
from cdc_outbox.watch.health import Check, Delivery, Health, Level, worst
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.thresholds import Threshold, Thresholds

if TYPE_CHECKING:
    from cdc_outbox.postgres.slot import Slot
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.sample import Sample

APPLICATION: Final = "cdc-outbox/"
"""How the application_name of each of our walsenders begins."""


def judge(
    sample: Sample,
    forecast: Forecast,
    thresholds: Thresholds,
    delivery: Delivery | None = None,
    *,
    volume: int | None = None,
    known: Known = Known.NAMED,
) -> Health:
    """Judge the slot by a sample and what the course of samples says (`Course.add`).

    `delivery`: what the relay says of itself, None where it could not be asked. `volume`: size in bytes of the volume
    that holds pg_wal. `known`: how it is known that the slot is read through the sample's publication. Where it is no
    more than the default, one that is missing is unknown for a slot that some other tool seems to own.
    """
    return _Judgement(sample, forecast, thresholds, delivery or Delivery(), volume, known).health()


def unreachable(slot: str, error: CdcOutboxError, *, last: Sample | None = None) -> Health:
    """The health where the server could not be asked: critical, or unknown where it refuses to answer us.

    `last` is the last sample that there was. Its figures are not told as if they were today's, only when it was.
    """
    status = Level.CRITICAL if isinstance(error, PostgresUnavailable) else Level.UNKNOWN
    summary = str(error)
    if last is not None:
        summary = f"{summary}; last seen {last.at:%Y-%m-%d %H:%M:%S}Z"
    check = Check("server", status, None, None, None, str(error), error.next)
    return Health(slot, status, summary, (check,), error.next, None, None, None)


def unasked(slot: str, error: str, remedy: str) -> Health:
    """The health that nobody could look at, for settings or flags are wrong; `slot` is empty where it isn't known."""
    check = Check("settings", Level.UNKNOWN, None, None, None, error, remedy)
    return Health(slot or "slot not known", Level.UNKNOWN, error, (check,), remedy, None, None, None)


@dataclass(frozen=True, slots=True)
class _Judgement:
    sample: Sample
    forecast: Forecast
    thresholds: Thresholds
    delivery: Delivery
    volume: int | None
    known: Known

    def health(self) -> Health:
        sample = self.sample
        found = self._slot_check()
        checks = [found]
        if sample.kept is not None and sample.kept.here and sample.kept.slot_type == "logical":
            checks += self._of_the_slot()
        culprit = culprits.find(sample, self.forecast)
        status = worst([each.status for each in checks if each.counts or each.status is not Level.UNKNOWN])
        remedies = [each.next for each in checks if each.status is status and each.next is not None]
        return Health(
            slot=sample.name,
            status=status,
            summary=summaries.summary(checks, sample, self.forecast, self.delivery, culprit, self.volume),
            checks=tuple(checks),
            next=remedies[0] if remedies and status is not Level.OK else None,
            culprit=culprit,
            sample=sample,
            forecast=self.forecast,
            delivery=self.delivery,
            inactive_seconds=self._inactive()[0],
            incidents=sample.witness.incidents if isinstance(sample.witness, Witness) else (),
            foreign_publication=self._foreign_publication,
            advice=summaries.advice(sample),
            volume=self.volume,
        )

    def _of_the_slot(self) -> Iterator[Check]:
        """In the order of causes: the first bad one of a kind has the next step."""
        yield self._synchronous()
        yield self._publication()
        yield from self._incidents()
        yield self._position()
        yield self._inactive_check()
        yield self._standbys()
        yield self._relay()
        yield self._oldest()
        yield self._stalled()
        yield self._wal_status()
        yield self._retained()
        yield self._time_to_loss()
        yield self._catalog_xmin()

    # What the slot is.

    @property
    def _kept(self) -> Slot:
        kept = self.sample.kept
        assert kept is not None  # noqa: S101 - only asked for where there is one
        return kept

    @property
    def _ours(self) -> bool:
        """Whether the slot is surely this project's: it has a witness row, or its reader bears our name."""
        holder = self.sample.holder
        return isinstance(self.sample.witness, Witness) or (
            holder is not None and (holder.application or "").startswith(APPLICATION)
        )

    @property
    def _foreign_publication(self) -> bool:
        state = self.sample.publication
        missing = state.identity is None and not self.sample.publishes
        default = self.known is Known.DEFAULT and missing and not self._ours
        return default or self.known is Known.GUESSED

    def _slot_check(self) -> Check:
        sample, slot = self.sample, self.sample.slot
        try:
            if slot is None and isinstance(sample.witness, Witness) and sample.pending is None:
                error: CdcOutboxError | None = witnesses.judge(
                    sample.name, sample.witness, None, self._server()
                ).error
            else:
                slots.require(slot, sample.name, pending=sample.pending)
                error = None
        except CdcOutboxError as found:
            error = found
        if error is None:
            return Check("slot", Level.OK, None, None, None, "the slot is there and usable")
        message, step = str(error), error.next
        names = sorted(each.name for each in sample.others if each.here and not each.temporary)
        if slot is None and sample.pending is None and names:
            message = f"{message}; this database has: {', '.join(names)}"
            near = nearest(sample.name, names)
            if likeness(sample.name, near) >= slip.ALIKE and not isinstance(sample.witness, Witness):
                step = slip.unless(near, f"cdc-outbox health --slot {near}", sample.name, step)
        return Check("slot", Level.CRITICAL, None, None, None, message, step)

    def _server(self) -> Server:
        sample = self.sample
        return Server(sample.version, sample.system_identifier, sample.timeline, sample.in_recovery, "", "")

    # What bars delivery whatever the figures are.

    def _synchronous(self) -> Check:
        sample, name = self.sample, "synchronous_standby"
        holder = sample.holder
        application = (holder.application if holder is not None else None) or APPLICATION + sample.name
        try:
            synchronous.require_none(sample.synchronous_standby_names, application)
        except CdcOutboxError as error:
            return _bad(name, str(error), error.next)
        return _good(name, "the reader of the slot is no synchronous standby")

    def _publication(self) -> Check:
        state = self.sample.publication
        if self._foreign_publication:
            return Check(
                "publication",
                Level.UNKNOWN,
                None,
                None,
                None,
                "it isn't known through which publication this slot is read",
                "name it with --publication, and its tables with --table",
                counts=self.known is Known.GUESSED and not isinstance(self.sample.witness, Absent),
            )
        if self.known is Known.GONE:
            gone = f"the publication that slot {self.sample.name} was read through is gone"
            told = f"{state.problem}; {gone}" if state.problem is not None else gone
            name = "name the one that took its place with --publication"
            return _bad("publication", told, self._named(state.next) if state.problem is not None else name)
        if state.problem is not None:
            return _bad("publication", state.problem, self._named(state.next))
        return _good("publication", f"publication {state.name} hides no row")

    def _named(self, remedy: str) -> str:
        """A publication's remedy, which doesn't know the slot, with the slot's name."""
        remedy = remedy.replace(recover(), recover(self.sample.name))
        return remedy.replace(accept_gap(), accept_gap(self.sample.name))

    def _incidents(self) -> Iterator[Check]:
        witness = self.sample.witness
        if not isinstance(witness, Witness):
            return
        told = self.sample.publication.problem is not None
        happened = [each for each in witness.incidents if not (told and each.kind.lasts)]
        if not happened:
            yield _good("incidents", "nothing happened to the publication that a person has to know of")
            return
        name = self.sample.name
        accept = f"after a look at what may be missing: cdc-outbox health --slot {name} --accept"
        if any(each.kind.bars for each in happened):
            accept = f"after a look at what may be missing: {accept_gap(name)}"
        yield _bad("incidents", "; ".join(each.message for each in happened), accept)

    def _position(self) -> Check:
        """Whether another hand moved the slot.

        A slot is read as it is now and the row as it was when the query began, so that the slot of the sample before
        is compared with the row of this one.
        """
        sample, name = self.sample, "position"
        slot, confirmed = self._kept, self._kept.confirmed_flush_lsn
        if confirmed is not None and sample.insert_lsn is not None and confirmed > sample.insert_lsn:
            return _bad(
                name,
                f"the slot stands at {confirmed}, beyond the end of the server's WAL, {sample.insert_lsn}:"
                " events between will be skipped",
                recover(sample.name),
            )
        if not isinstance(sample.witness, Witness) or sample.in_recovery or sample.slot is None:
            return _unknown(name, "there is no witness of what was delivered")
        before = self.forecast.confirmed_before
        compared = min(confirmed, before) if confirmed is not None and before is not None else None
        verdict = witnesses.judge(
            sample.name, sample.witness, replace(slot, confirmed_flush_lsn=compared), self._server()
        )
        if verdict.error is not None:
            return _bad(name, str(verdict.error), verdict.error.next)
        return _good(name, f"everything up to {sample.witness.position} was delivered")

    def _standbys(self) -> Check:
        """A failover slot sends nothing that the standbys of synchronized_standby_slots don't have yet."""
        name = "standbys"
        wanted = synchronous.names(self.sample.synchronized_standby_slots)
        if not wanted or not self._kept.failover:
            return _good(name, "delivery waits for no standby")
        there = {each.name: each for each in self.sample.others}
        away = [each for each in wanted if each not in there or not there[each].active]
        if not away:
            return _good(name, f"the standbys that delivery waits for are there: {', '.join(wanted)}")
        return Check(
            name,
            Level.WARNING,
            ", ".join(away),
            None,
            None,
            f"delivery waits for {', '.join(away)} of synchronized_standby_slots, and nobody streams from there",
            "bring that standby back, or take it out: alter system set synchronized_standby_slots = '…';"
            " select pg_reload_conf();",
        )

    # Delivery.

    def _inactive(self) -> tuple[float | None, str]:
        """For how many seconds nobody has read from the slot, and whether that is exact, at most or at least."""
        sample, slot = self.sample, self.sample.kept
        if slot is None or slot.active:
            return None, ""
        if slot.inactive_since is not None:
            return self._since(slot.inactive_since), ""
        if isinstance(sample.witness, Witness) and sample.witness.updated_at is not None:
            return self._since(sample.witness.updated_at), "at most "
        seen = self.forecast.inactive_at
        if seen is not None and seen < sample.at:
            return self._since(seen), "at least "
        return None, ""

    def _since(self, at: datetime) -> float:
        return max(0.0, (self.sample.at - at).total_seconds())

    def _inactive_check(self) -> Check:
        slot, threshold = self._kept, self.thresholds.inactive
        if slot.active:
            return _good("inactive", "somebody reads from the slot", threshold)
        if self.sample.in_recovery:
            return _good("inactive", "nobody reads from a slot on a standby", threshold)
        seconds, how = self._inactive()
        start = self._delivery_next()
        if not self._ours and self.known is not Known.NAMED:
            start += ", or the tool that reads from this slot"
        if self.sample.slot is None:
            start = f"cdc-outbox init --slot {self.sample.name}"
        if seconds is None:
            message = (
                f"inactive, and PostgreSQL {self.sample.version // 10000} doesn't tell since when:"
                " there is no witness row either"
            )
            return Check(
                "inactive",
                Level.UNKNOWN,
                None,
                threshold.warning,
                threshold.critical,
                message,
                start,
                counts=True,
            )
        status = _above(seconds, threshold)
        if how == "at least " and status is Level.OK:
            status = Level.UNKNOWN
        message = f"inactive for {how}{words.duration(seconds)}"
        return Check(
            "inactive", status, seconds, threshold.warning, threshold.critical, message, start, counts=True
        )

    def _relay(self) -> Check:
        """Whether the relay, where it could be asked, says that it can't deliver: at once, whatever its age."""
        state, reason = self.delivery.state, self.delivery.reason
        if state is None:
            return _unknown("relay", "not known: the relay's /status is not reachable from here")
        message = f"the relay says {state}" + (f": {reason}" if reason else "")
        level = Level.WARNING if self.delivery.stuck else Level.OK
        return Check("relay", level, state, None, None, message, self._delivery_next())

    def _oldest(self) -> Check:
        seconds, threshold = (
            self.delivery.oldest_unacknowledged_seconds,
            self.thresholds.oldest_unacknowledged,
        )
        name = "oldest_unacknowledged"
        if seconds is None:
            message = "not known: the relay's /status is not reachable from here"
            return _unknown(name, message, threshold)
        message = (
            f"the oldest commit without an acknowledgement is {words.duration(seconds)} old{self._trouble}"
        )
        return self._measured(name, seconds, threshold, message, self._delivery_next())

    def _stalled(self) -> Check:
        """Whether what waits has waited without any acknowledgement."""
        threshold, unconfirmed = self.thresholds.stalled, self.sample.unconfirmed
        rates = self.forecast.rates
        if unconfirmed is None or unconfirmed <= NOISE:
            return self._measured("stalled", 0.0, threshold, "no more than 1 MiB is not confirmed", None)
        witness = self.sample.witness
        known = [self.delivery.last_acknowledged_at, self.forecast.confirmed_at]
        known += [witness.updated_at] if isinstance(witness, Witness) else []
        times = [each for each in known if each is not None]
        seconds = self._since(max(times) if times else self.forecast.began)
        if rates is not None and rates.wal > 0:
            # What waits is no older than the time in which so much WAL was written.
            seconds = min(seconds, unconfirmed / rates.wal) if self.forecast.keeps_up else seconds
        for_so_long = f"no acknowledgement for {words.duration(seconds)}{self._trouble}"
        message = f"{words.size(unconfirmed)} not confirmed, and {for_so_long}"
        check = self._measured("stalled", seconds, threshold, message, self._delivery_next())
        if not times and check.status is Level.OK and not self.forecast.keeps_up:
            return replace(check, status=Level.UNKNOWN, value=None)
        return check

    @property
    def _trouble(self) -> str:
        return f" ({self.delivery.trouble})" if self.delivery.trouble else ""

    def _delivery_next(self) -> str:
        name = self.sample.name
        if self.delivery.next is not None:
            return self.delivery.next
        if not self._kept.active and self.delivery.state is None:
            return f"cdc-outbox start --slot {name}"
        peek = f"cdc-outbox peek --slot {name} --follow"
        return f"see what the relay says at /status and in its log, and what comes next: {peek}"

    # Disk.

    def _wal_status(self) -> Check:
        threshold, status = self.thresholds.wal_status, self._kept.wal_status
        if status not in slots.WAL_STATUSES:
            return _unknown("wal_status", f"wal_status is {status or 'not known'}", threshold)
        level = _above(
            slots.WAL_STATUSES.index(status), Threshold(_rank(threshold.warning), _rank(threshold.critical))
        )
        return Check(
            "wal_status",
            level,
            status,
            threshold.warning,
            threshold.critical,
            f"wal_status is {status}",
            self._disk_next(),
        )

    def _retained(self) -> Check:
        sample, retained = self.sample, self.sample.retained
        if sample.limit is not None:
            name, threshold, whole = "retained", self.thresholds.retained, sample.limit
        elif self.volume is not None:
            name, threshold, whole = "retained_volume", self.thresholds.retained_volume, self.volume
        else:
            name, threshold, whole = "retained_bytes", self.thresholds.retained_bytes, None
        if retained is None:
            return _unknown(name, "not known", threshold)
        value = retained if whole is None else retained / whole
        return self._measured(name, value, threshold, summaries.kept(sample, self.volume), self._disk_next())

    def _time_to_loss(self) -> Check:
        threshold, forecast = self.thresholds.time_to_loss, self.forecast
        if forecast.loss is Outlook.UNKNOWN:
            message = "not known: two samples are needed"
            if forecast.basis is None:
                message = (
                    "not known: there is no max_slot_wal_keep_size, and PostgreSQL doesn't know the size of"
                    " its volume; say it with --wal-volume-size"
                )
            return _unknown("time_to_loss", message, threshold)
        seconds = forecast.seconds_to_loss
        level = Level.OK
        if seconds is not None:
            level = _above(-seconds, Threshold(_negative(threshold.warning), _negative(threshold.critical)))
        return Check(
            "time_to_loss",
            level,
            seconds,
            threshold.warning,
            threshold.critical,
            "the slot is lost" if self._kept.lost else summaries.loss(self.sample, forecast),
            self._disk_next(),
        )

    def _disk_next(self) -> str:
        """The step that lets WAL go, by who keeps it."""
        culprit, name = culprits.find(self.sample, self.forecast), self.sample.name
        if culprit is not None and culprit.kind != "slot":
            return culprit.next
        if self.sample.slot is None:
            return slots.unfinished(name)
        if self._kept.lost:
            return recover(name)
        return self._delivery_next()

    def _catalog_xmin(self) -> Check:
        age, threshold = self.sample.catalog_xmin_age, self.thresholds.catalog_xmin_age
        if age is None:
            return _unknown("catalog_xmin_age", "the slot holds no catalog_xmin", threshold)
        message = (
            f"catalog_xmin is {words.count(age)} transactions old, and VACUUM of the catalogue waits for it"
        )
        return self._measured("catalog_xmin_age", age, threshold, message, self._disk_next())

    def _measured(
        self, name: str, value: float, threshold: Threshold, message: str, remedy: str | None
    ) -> Check:
        return Check(
            name, _above(value, threshold), value, threshold.warning, threshold.critical, message, remedy
        )


def _good(name: str, message: str, threshold: Threshold | None = None) -> Check:
    warning, critical = (None, None) if threshold is None else (threshold.warning, threshold.critical)
    return Check(name, Level.OK, None, warning, critical, message)


def _unknown(name: str, message: str, threshold: Threshold | None = None) -> Check:
    warning, critical = (None, None) if threshold is None else (threshold.warning, threshold.critical)
    return Check(name, Level.UNKNOWN, None, warning, critical, message)


def _bad(name: str, message: str, remedy: str) -> Check:
    return Check(name, Level.CRITICAL, None, None, None, message, remedy)


def _above(value: float, threshold: Threshold) -> Level:
    """How bad a value is that is the worse the larger it is."""
    if isinstance(threshold.critical, float | int) and value >= threshold.critical:
        return Level.CRITICAL
    if isinstance(threshold.warning, float | int) and value >= threshold.warning:
        return Level.WARNING
    return Level.OK


def _rank(word: float | str | None) -> float | None:
    return None if word is None else slots.WAL_STATUSES.index(str(word))


def _negative(value: float | str | None) -> float | None:
    return None if value is None else -float(value)
