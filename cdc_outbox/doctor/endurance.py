"""What makes trouble only later: an outage of Kafka, a failover, a pause of a machine. Pure, over what was gathered.

https://www.postgresql.org/docs/current/runtime-config-replication.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc_outbox.doctor import hosting
from cdc_outbox.doctor.check import MAY_PASS
from cdc_outbox.doctor.hosting import Hosting, Setting
from cdc_outbox.postgres import synchronous
from cdc_outbox.postgres.remedy import recover

if TYPE_CHECKING:
    from cdc_outbox.doctor.check import Findings
    from cdc_outbox.doctor.facts import Facts
    from cdc_outbox.postgres.slot import Slot

CLOCKS_APART: Final = 1.0
"""Seconds from which the clocks' difference falsifies ages and latencies."""

LITTLE_WAL: Final = 1024
"""MB of `max_slot_wal_keep_size` below which an ordinary outage of Kafka may cost the slot."""

SHORT_TIMEOUT: Final = 5000
"""Milliseconds of `wal_sender_timeout` below which a pause of the machine ends the stream."""

_LIMIT: Final = Setting("max_slot_wal_keep_size", "16GB", "16384")
_TIMEOUT: Final = Setting("wal_sender_timeout", "30s", "30000")


@dataclass(frozen=True, slots=True)
class Endurance:
    """The server's facts, where it runs and its version, like 180001; the slot's name, and the slot if it is there."""

    facts: Facts
    findings: Findings
    hosting: Hosting
    version: int
    name: str
    found: Slot | None

    def examine(self, began: float, ended: float) -> None:
        """All checks; the server's clock was read between the two times of ours."""
        self.retention()
        self.synchronous_commit()
        self.failover()
        self.timeouts()
        self.clock(began, ended)

    def change(self, setting: Setting) -> str:
        return hosting.change(self.hosting, setting)

    def retention(self) -> None:
        most = self.facts.number("max_slot_wal_keep_size")
        removed = hosting.SLOT_REMOVED.get(self.hosting)
        idle = self.facts.number("idle_replication_slot_timeout")
        if removed is not None:
            self.findings.warn("retention", f"{removed}, and its events with it", "keep two relays running")
        elif idle > 0:
            self.findings.warn(
                "retention",
                f"idle_replication_slot_timeout is {idle} s: a relay that is away for longer loses its slot",
                self.change(Setting("idle_replication_slot_timeout", "0")),
            )
        elif most < 0:
            self.findings.warn(
                "retention",
                "max_slot_wal_keep_size has no limit: a slot that nobody reads fills the disk",
                self.change(_LIMIT),
            )
        elif most < LITTLE_WAL:
            self.findings.warn(
                "retention",
                f"max_slot_wal_keep_size is {most} MB: a short outage of Kafka may cost the slot",
                self.change(_LIMIT),
            )
        else:
            self.findings.ok("retention", f"max_slot_wal_keep_size is {most} MB")

    def synchronous_commit(self) -> None:
        why = "what commits asynchronously reaches the relay up to 0.6 s late"
        if self.facts.lazy:
            self.findings.warn(
                "synchronous_commit",
                f"it is off for {', '.join(self.facts.lazy)}: {why}",
                "\n".join(f"alter {target} reset synchronous_commit;" for target in self.facts.lazy),
            )
        elif self.facts.settings.get("synchronous_commit") == "off":
            self.findings.warn(
                "synchronous_commit",
                f"it is off for new sessions: {why}",
                self.change(Setting("synchronous_commit", "on")),
            )
        else:
            self.findings.ok("synchronous_commit", self.facts.settings.get("synchronous_commit", "unknown"))

    def failover(self) -> None:
        found = self.found
        if self.hosting in (Hosting.AURORA, Hosting.NEON):
            self.findings.ok("failover", "slots are part of the cluster's storage there")
        elif not self.facts.standbys and not self.facts.physical:
            self.findings.ok("failover", "no standby is known here")
        elif self.version < 170000:
            self.findings.warn(
                "failover",
                "before PostgreSQL 17 a standby doesn't get the slot: after a failover delivery begins anew",
                f"upgrade to PostgreSQL 17 or later; after a failover {recover(self.name)}",
            )
        elif found is None:
            self.findings.ok("failover", "there is a standby; init makes a failover slot")
        elif not found.failover:
            self.findings.warn(
                "failover",
                f"{self.name} is no failover slot: a promoted standby doesn't have it",
                f"stop the relay, then: psql 'dbname={self.facts.database} replication=database'"
                f" -c 'ALTER_REPLICATION_SLOT {self.name} (FAILOVER true)'",
            )
        else:
            self.synchronized()

    def synchronized(self) -> None:
        """A failover slot, and whether its standbys hold the relay back, as they should while they are there."""
        named = synchronous.names(self.facts.settings.get("synchronized_standby_slots", ""))
        waiting = [name for name in named if not self.facts.physical.get(name)]
        left = [name for name in named if name not in waiting]
        if not named:
            self.findings.warn(
                "failover",
                "synchronized_standby_slots is empty: an event may reach Kafka whose transaction a promoted standby"
                " never had",
                self.change(
                    Setting(
                        "synchronized_standby_slots", ", ".join(self.facts.physical) or "SLOT_OF_THE_STANDBY"
                    )
                ),
            )
        elif waiting:
            self.findings.fail(
                "failover",
                f"synchronized_standby_slots waits for {', '.join(waiting)}, which no standby uses now: nothing is"
                " delivered until one does",
                "start that standby, or take its slot out:\n"
                + self.change(Setting("synchronized_standby_slots", ", ".join(left))),
                exit_code=MAY_PASS,
            )
        else:
            self.findings.ok("failover", f"a failover slot, behind {', '.join(named)}")

    def timeouts(self) -> None:
        timeout = self.facts.number("wal_sender_timeout")
        if timeout == 0 or timeout > 30_000:
            shown = "off" if timeout == 0 else f"{timeout} ms"
            self.findings.ok("wal_sender_timeout", f"{shown}; the relay's own session takes 30 s")
        elif timeout < SHORT_TIMEOUT:
            self.findings.warn(
                "wal_sender_timeout",
                f"it is {timeout} ms: a short pause of the relay's machine ends the stream",
                self.change(_TIMEOUT),
            )
        else:
            self.findings.ok("wal_sender_timeout", f"{timeout} ms")

    def clock(self, began: float, ended: float) -> None:
        apart = max(began - self.facts.at, self.facts.at - ended, 0.0)
        if apart > CLOCKS_APART:
            way = "behind" if self.facts.at < began else "ahead of"
            self.findings.warn(
                "clock",
                f"the server's clock is {apart:.1f} s {way} ours: ages and latencies are wrong by that",
                "let both machines follow one time server: timedatectl set-ntp true",
            )
        else:
            self.findings.ok("clock", "the server's and ours agree")
