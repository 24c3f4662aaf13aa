"""Health for a person: one line for a pager, then the evidence, then one next step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc_outbox.terminal import printable
from cdc_outbox.watch import words
from cdc_outbox.watch.forecast import Outlook
from cdc_outbox.watch.health import Level
from cdc_outbox.watch.subject import APPLICATION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc_outbox.watch.health import Health
    from cdc_outbox.watch.sample import Sample

_WIDTH: Final = 14
_COLOURS: Final = {Level.OK: "32", Level.WARNING: "33", Level.CRITICAL: "31", Level.UNKNOWN: "35"}


def text(health: Health, *, colour: bool = False) -> str:
    """The whole, without a line's end."""
    lines = [headline(health, colour=colour)]
    lines += [f"  {label:{_WIDTH}}{printable(said)}" for label, said in _evidence(health)]
    return "\n".join(lines)


def headline(health: Health, *, colour: bool = False) -> str:
    """Slot, status and summary."""
    return f"{health.slot}  {status(health.status, colour=colour)}  {printable(health.summary)}"


def status(level: Level, *, colour: bool) -> str:
    """The status in capitals, in its colour on a terminal."""
    word = level.value.upper()
    return f"\x1b[{_COLOURS[level]};1m{word}\x1b[0m" if colour else word


def _evidence(health: Health) -> Iterator[tuple[str, str]]:
    sample = health.sample
    if sample is not None and sample.kept is not None:
        yield "slot", _slot(sample)
        if sample.kept.here and sample.kept.slot_type == "logical":
            yield "delivery", _delivery(health, sample)
            yield "retention", _retention(health, sample)
            if health.culprit is not None:
                yield "held by", health.culprit.message
            yield "publication", _publication(health, sample)
    for incident in health.incidents:
        yield "incident", f"{incident.at:%Y-%m-%d %H:%M:%S}Z {incident.message}"
    if health.advice is not None:
        yield "advice", health.advice
    if health.next is not None:
        yield "next step", health.next


def _slot(sample: Sample) -> str:
    slot = sample.kept
    assert slot is not None  # noqa: S101 - only asked for where there is one
    parts = [slot.plugin or slot.slot_type]
    if slot.name != sample.name:
        parts.insert(0, slot.name)
    if slot.database is not None:
        parts.append(f"database {slot.database}")
    if not slot.active:
        since = slot.inactive_since
        parts.append("inactive" if since is None else f"inactive since {words.moment(since, sample.at)}")
    elif sample.holder is None or sample.holder.user is None:
        parts.append(f"active, pid {slot.active_pid}")
    else:
        application = f", {sample.holder.application}" if sample.holder.application else ""
        parts.append(f"active, pid {slot.active_pid} (user {sample.holder.user}{application})")
    if slot.wal_status is not None:
        parts.append(f"wal_status {slot.wal_status}")
    if slot.invalidation_reason is not None:
        parts.append(slot.invalidation_reason)
    return ", ".join(parts)


def _delivery(health: Health, sample: Sample) -> str:
    unconfirmed, delivery = sample.unconfirmed, health.delivery
    parts = ["not known" if unconfirmed is None else f"{words.size(unconfirmed)} not confirmed"]
    forecast = health.forecast
    if forecast is not None and sample.kept is not None and sample.kept.active:
        if forecast.caught_up is Outlook.IN:
            parts.append(f"caught up in about {words.duration(forecast.seconds_to_caught_up or 0)}")
        elif forecast.caught_up is Outlook.NEVER:
            parts.append("never caught up at this rate")
    if delivery.oldest_unacknowledged_seconds:
        parts.append(f"oldest {words.duration(delivery.oldest_unacknowledged_seconds)}")
    if delivery.state is not None:
        reason = f" ({delivery.reason})" if delivery.reason else ""
        parts.append(f"relay {delivery.state}{reason}")
    elif sample.holder is not None and (sample.holder.application or "").startswith(APPLICATION):
        parts.append(
            f"its relay tells us nothing: {delivery.refusal}; name the file with its token as http.token_file"
            if delivery.refusal
            else "its relay doesn't answer here: name its address with --http HOST:PORT"
        )
    return ", ".join(parts)


def _retention(health: Health, sample: Sample) -> str:
    retained, forecast = sample.retained, health.forecast
    if sample.kept is not None and sample.kept.lost:
        return "lost: WAL that the slot still needed is gone"
    parts = ["not known" if retained is None else f"{words.size(retained)} kept"]
    if forecast is not None and forecast.left is not None:
        whole = sample.limit is not None and forecast.left > sample.limit
        segments = ", for the server counts whole segments" if whole else ""
        parts.append(f"{words.size(forecast.left)} left{segments}")
    if forecast is not None and forecast.basis is not None and sample.limit is None:
        parts.append(f"by {forecast.basis.value}")
    if sample.limit is None:
        parts.append("no max_slot_wal_keep_size")
    if sample.wal_bytes is not None:
        parts.append(f"pg_wal is {words.size(sample.wal_bytes)}")
    return ", ".join(parts)


def _publication(health: Health, sample: Sample) -> str:
    state = sample.publication
    if health.foreign_publication:
        return "not known: perhaps another tool's slot; name it with --publication"
    if state.problem is not None:
        return state.problem
    kinds = "inserts only" if sample.publishes == ("inserts",) else ", ".join(sample.publishes)
    return f"{state.name}: {', '.join(map(str, sample.tables))}, {kinds}"
