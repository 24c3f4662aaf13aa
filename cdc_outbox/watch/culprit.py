"""Who keeps WAL besides the relay: an open transaction, a prepared one, or another slot; by name. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc_outbox.watch import words
from cdc_outbox.watch.health import Culprit

if TYPE_CHECKING:
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.sample import Sample, Transaction

_GRANT: Final = "grant pg_read_all_stats to the relay's role, and its age is shown"


def find(sample: Sample, forecast: Forecast) -> Culprit | None:
    """Who else keeps WAL: the transaction that holds this slot's, else a slot that keeps more than this one."""
    if forecast.holder is not None:
        return _transaction(sample, forecast.holder)
    return _slot(sample)


def _slot(sample: Sample) -> Culprit | None:
    retained = sample.retained
    others = [each for each in sample.others if each.restart_lsn is not None and not each.lost]
    oldest = min(others, key=lambda each: each.restart_lsn or 0, default=None)
    if oldest is None or oldest.restart_lsn is None or retained is None:
        return None
    kept = sample.current_lsn.bytes_since(oldest.restart_lsn)
    if kept <= retained + 2 * sample.limits.segment:
        return None
    reader = "nobody reads from it" if not oldest.active else f"pid {oldest.active_pid} reads from it"
    return Culprit(
        kind="slot",
        pid=oldest.active_pid,
        gid=None,
        slot=oldest.name,
        user=None,
        application=None,
        database=oldest.database,
        age_seconds=None,
        query_start=None,
        held_bytes=kept,
        message=f'slot "{oldest.name}" keeps {words.size(kept)}, more than this one; {reader}',
        next=f"see to the slot {oldest.name}, or drop it if nobody needs it:"
        f" select pg_drop_replication_slot('{oldest.name}');",
    )


def _transaction(sample: Sample, holder: Transaction) -> Culprit:
    held = sample.held_beyond or 0
    age = None if holder.began is None else max(0.0, (sample.at - holder.began).total_seconds())
    who = [f"user {holder.user or 'unknown'}", f"database {holder.database or 'unknown'}"]
    who += [f"application {holder.application}"] if holder.application else []
    who += [f"open for {words.duration(age)}"] if age is not None else ["age unknown"]
    if holder.query_began is not None:
        who.append(f"query since {words.moment(holder.query_began, sample.at)}")
    one = f"pid {holder.pid}" if holder.pid is not None else f"prepared transaction '{holder.gid}'"
    end = f"let that transaction end, or end it: select pg_terminate_backend({holder.pid});"
    if holder.pid is None:
        gid = (holder.gid or "").replace("'", "''")
        end = f"in database {holder.database}: rollback prepared '{gid}'; or commit prepared"
    return Culprit(
        kind="transaction" if holder.pid is not None else "prepared_transaction",
        pid=holder.pid,
        gid=holder.gid,
        slot=None,
        user=holder.user,
        application=holder.application,
        database=holder.database,
        age_seconds=age,
        query_start=holder.query_began,
        held_bytes=held,
        message=f"{one} ({', '.join(who)}) holds {words.size(held)} of WAL that was delivered"
        + (f"; {_GRANT}" if age is None and not sample.sees_sessions else ""),
        next=end,
    )
