"""What the server says of itself, its settings and its slots: one query, without special rights, on 15 to 18.

Of a setting the value counts that new sessions of our role get: our own session has some that are its own. Settings
that a version doesn't have are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.doctor.hosting import FUNCTIONS, PREFIXES, ROLES, Signs
from cdc_outbox.postgres.connection import execute

if TYPE_CHECKING:
    from cdc_outbox.postgres.connection import Connection

SETTINGS: Final = (
    "idle_replication_slot_timeout",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_senders",
    "synchronized_standby_slots",
    "synchronous_commit",
    "synchronous_standby_names",
    "wal_level",
    "wal_sender_timeout",
)
"""Sizes among them are in MB, times in ms, but for idle_replication_slot_timeout, which is in seconds."""

_FACTS: Final[LiteralString] = """
select session_user::text, current_database()::text, pg_catalog.pg_backend_pid(),
       extract(epoch from clock_timestamp())::float8,
       (select jsonb_object_agg(name, reset_val) from pg_catalog.pg_settings where name = any(%(settings)s)),
       (select count(*) from pg_catalog.pg_replication_slots),
       (select count(*) from pg_catalog.pg_stat_replication),
       (select count(*) from pg_catalog.pg_stat_replication r
         where not exists (select from pg_catalog.pg_replication_slots s
                            where s.active_pid = r.pid and s.slot_type = 'logical')),
       (select coalesce(jsonb_object_agg(slot_name, active), '{}') from pg_catalog.pg_replication_slots
         where slot_type = 'physical' and not temporary),
       (select coalesce(jsonb_agg(case when d.setrole = 0 and d.setdatabase = 0 then 'role all'
                                       when d.setrole = 0 then 'database ' || quote_ident(b.datname)
                                       when d.setdatabase = 0 then 'role ' || quote_ident(r.rolname)
                                       else 'role ' || quote_ident(r.rolname) || ' in database '
                                            || quote_ident(b.datname) end), '[]')
          from pg_catalog.pg_db_role_setting d cross join unnest(d.setconfig) as each (setting)
          left join pg_catalog.pg_roles r on r.oid = d.setrole
          left join pg_catalog.pg_database b on b.oid = d.setdatabase
         where (d.setdatabase = 0 or b.datname = current_database())
           and lower(each.setting) in ('synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no',
                                       'synchronous_commit=0')),
       array(select distinct split_part(name, '.', 1) from pg_catalog.pg_settings where strpos(name, '.') > 0)
       || case when current_setting('cnpg.config_sha256', true) is null then '{}' else '{cnpg}'::text[] end,
       array(select rolname::text from pg_catalog.pg_roles where rolname = any(%(roles)s)),
       array(select distinct proname::text from pg_catalog.pg_proc where proname = any(%(functions)s))
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """The answer. `at` is the server's clock, in seconds since 1970; `pid` is the backend behind the connection.

    `standbys` counts walsenders that stream no logical slot, `physical` has the physical slots and whether each is in
    use, `lazy` whose new sessions commit asynchronously, as ALTER names them: `role app in database shop`.
    """

    role: str
    database: str
    pid: int
    at: float
    settings: Mapping[str, str]
    slots: int
    walsenders: int
    standbys: int
    physical: Mapping[str, bool]
    lazy: tuple[str, ...]
    signs: Signs

    def number(self, name: str) -> int:
        """A setting that is a number; -1 where the server has none of that name."""
        return int(self.settings.get(name, -1))


async def gather(conn: Connection, *, within: float) -> Facts:
    """Ask the server. Raises what `execute` raises."""
    parameters = {"settings": list(SETTINGS), "roles": list(ROLES), "functions": list(FUNCTIONS)}
    (
        (
            role,
            database,
            pid,
            at,
            settings,
            slots,
            walsenders,
            standbys,
            physical,
            lazy,
            prefixes,
            roles,
            functions,
        ),
    ) = await execute(conn, _FACTS, parameters, within=within)
    return Facts(
        role=str(role),
        database=str(database),
        pid=int(pid),
        at=float(at),
        settings={str(name): str(value) for name, value in settings.items()},
        slots=int(slots),
        walsenders=int(walsenders),
        standbys=int(standbys),
        physical={str(name): bool(active) for name, active in physical.items()},
        lazy=tuple(str(name) for name in lazy),
        signs=Signs(frozenset(prefixes) & {*PREFIXES}, frozenset(roles), frozenset(functions)),
    )
