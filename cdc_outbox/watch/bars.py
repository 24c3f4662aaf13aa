"""What bars delivery whatever the figures are: no slot, another hand on it, a publication that hides rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.postgres import slip, synchronous
from cdc_outbox.postgres import slot as slots
from cdc_outbox.postgres import witness as witnesses
from cdc_outbox.postgres.remedy import accept_gap, recover
from cdc_outbox.postgres.server import Server
from cdc_outbox.postgres.witness import Absent, Witness
from cdc_outbox.settings.likeness import likeness, nearest
from cdc_outbox.watch.health import Check, Level
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.subject import APPLICATION
from cdc_outbox.watch.verdict import bad, good, unknown

if TYPE_CHECKING:
    from cdc_outbox.watch.sample import Sample
    from cdc_outbox.watch.subject import Subject


def slot(subject: Subject) -> Check:
    """Whether the slot is there and can be streamed from; else with the names that it may have been meant to have."""
    sample, slot = subject.sample, subject.sample.slot
    try:
        slots.require_own(sample.name)
        if slot is None and sample.in_recovery:
            raise slots.not_carried_over(sample.name)
        if slot is None and isinstance(sample.witness, Witness) and sample.pending is None:
            error: CdcOutboxError | None = witnesses.judge(
                sample.name, sample.witness, None, _server(subject.sample)
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
    level = Level.WARNING if slot is not None and slot.unready else Level.CRITICAL
    return Check("slot", level, None, None, None, message, step)


def synchronous_standby(subject: Subject) -> Check:
    """Whether the application's commits wait for the reader of the slot."""
    sample, name = subject.sample, "synchronous_standby"
    holder = sample.holder
    application = (holder.application if holder is not None else None) or APPLICATION + sample.name
    try:
        synchronous.require_none(sample.synchronous_standby_names, application)
    except CdcOutboxError as error:
        return bad(name, str(error), error.next)
    return good(name, "the reader of the slot is no synchronous standby")


def publication(subject: Subject) -> Check:
    """Whether the publication hides rows, as far as it is known through which one the slot is read."""
    state = subject.sample.publication
    if subject.foreign_publication:
        return Check(
            "publication",
            Level.UNKNOWN,
            None,
            None,
            None,
            "it isn't known through which publication this slot is read",
            "name it with --publication, and its tables with --table",
            counts=subject.known is Known.GUESSED and not isinstance(subject.sample.witness, Absent),
        )
    if subject.known is Known.GONE:
        gone = f"the publication that slot {subject.sample.name} was read through is gone"
        told = f"{state.problem}; {gone}" if state.problem is not None else gone
        name = "name the one that took its place with --publication"
        return bad(
            "publication",
            told,
            _named(subject.sample.name, state.next) if state.problem is not None else name,
        )
    if state.problem is not None:
        return bad("publication", state.problem, _named(subject.sample.name, state.next))
    return good("publication", f"publication {state.name} hides no row")


def incidents(subject: Subject) -> Iterator[Check]:
    """What happened to the publication and nobody has accepted yet."""
    witness = subject.sample.witness
    if not isinstance(witness, Witness):
        return
    told = subject.sample.publication.problem is not None
    happened = [each for each in witness.incidents if not (told and each.kind.lasts)]
    if not happened:
        yield good("incidents", "nothing happened to the publication that a person has to know of")
        return
    name = subject.sample.name
    accept = f"after a look at what may be missing: cdc-outbox health --slot {name} --accept"
    if any(each.kind.bars for each in happened):
        accept = f"after a look at what may be missing: {accept_gap(name)}"
    yield bad("incidents", "; ".join(each.message for each in happened), accept)


def position(subject: Subject) -> Check:
    """Whether another hand moved the slot.

    A slot is read as it is now and the row as it was when the query began, so that the slot of the sample before
    is compared with the row of this one.
    """
    sample, name = subject.sample, "position"
    slot, confirmed = subject.kept, subject.kept.confirmed_flush_lsn
    if confirmed is not None and sample.insert_lsn is not None and confirmed > sample.insert_lsn:
        return bad(
            name,
            f"the slot stands at {confirmed}, beyond the end of the server's WAL, {sample.insert_lsn}:"
            " events between will be skipped",
            recover(sample.name),
        )
    if not isinstance(sample.witness, Witness) or sample.in_recovery or sample.slot is None:
        return unknown(name, "there is no witness of what was delivered")
    before = subject.forecast.confirmed_before
    compared = min(confirmed, before) if confirmed is not None and before is not None else None
    verdict = witnesses.judge(
        sample.name, sample.witness, replace(slot, confirmed_flush_lsn=compared), _server(subject.sample)
    )
    if verdict.error is not None:
        return bad(name, str(verdict.error), verdict.error.next)
    return good(name, f"everything up to {sample.witness.position} was delivered")


def standbys(subject: Subject) -> Check:
    """A failover slot sends nothing that the standbys of synchronized_standby_slots don't have yet."""
    name = "standbys"
    wanted = synchronous.names(subject.sample.synchronized_standby_slots)
    if not wanted or not subject.kept.failover:
        return good(name, "delivery waits for no standby")
    there = {each.name: each for each in subject.sample.others}
    away = [each for each in wanted if each not in there or not there[each].active]
    if not away:
        return good(name, f"the standbys that delivery waits for are there: {', '.join(wanted)}")
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


def _named(slot: str, remedy: str) -> str:
    """A publication's remedy, which doesn't know the slot, with the slot's name."""
    remedy = remedy.replace(recover(), recover(slot))
    return remedy.replace(accept_gap(), accept_gap(slot))


def _server(sample: Sample) -> Server:
    return Server(sample.version, sample.system_identifier, sample.timeline, sample.in_recovery, "", "")
