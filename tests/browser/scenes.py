"""What `/status` says in the situations that the page must show well."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

MIB = 1 << 20
GIB = 1 << 30

Status = dict[str, Any]

HOLDER = (
    "pid 20817 (user reporting, database app, application metabase, open for 2h 11m) holds 3.1 GiB of WAL "
    "that was delivered"
)


def moment(ago: float = 0, *, now: float | None = None) -> str:
    """A time so many seconds ago, as the relay writes it."""
    return (
        datetime.fromtimestamp((now or time.time()) - ago, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def history(shape: Callable[[float, random.Random], dict[str, Any]], *, seconds: int = 3600) -> Status:
    """A point for each 10 s; `shape` gives its values from its age in seconds."""
    chance, now = random.Random(1), time.time()
    points = [{"at": moment(age, now=now), **shape(age, chance)} for age in range(seconds, -1, -10)]
    return {"step_seconds": 10, "points": points}


def check(name: str, status: str, message: str, value: Any = None) -> Status:
    return {
        "name": name,
        "status": status,
        "value": value,
        "warning": None,
        "critical": None,
        "message": message,
    }


def _calm(age: float, chance: random.Random) -> dict[str, Any]:
    wave = 1 + 0.25 * math.sin(age / 500) + chance.uniform(-0.06, 0.06)
    sawtooth = (3600 - age) % 300 / 300
    return {
        "unconfirmed_bytes": int(0.6 * MIB * wave),
        "retained_bytes": int((6 + 22 * sawtooth) * MIB * wave),
        "events_per_second": 420 * wave,
        "p50_seconds": 0.0021 * wave,
        "p99_seconds": 0.0074 * wave * chance.uniform(0.9, 1.3),
    }


def healthy() -> Status:
    """A relay that has streamed for days."""
    return {
        "schema_version": 1,
        "state": "streaming",
        "reason": "",
        "since": moment(3.2 * 86400),
        "version": "1.4.0",
        "slot": "outbox_slot",
        "health": {
            "schema_version": 1,
            "status": "ok",
            "summary": "active, caught up; WAL kept 18.0 MiB of 4.0 GiB (0 %)",
            "slot": {
                "name": "outbox_slot",
                "exists": True,
                "active": True,
                "active_pid": 41822,
                "plugin": "pgoutput",
                "database": "app",
                "wal_status": "reserved",
                "restart_lsn": "3A/91B20F08",
                "confirmed_flush_lsn": "3A/92CF1A40",
                "retained_bytes": 18 * MIB,
                "unconfirmed_bytes": MIB // 2,
                "safe_wal_bytes": 4 * GIB - 18 * MIB,
                "inactive_seconds": None,
                "invalidation_reason": None,
                "failover": True,
            },
            "limits": {"max_slot_wal_keep_bytes": 4 * GIB},
            "rate": {"wal_bytes_per_second": 0.4 * MIB},
            "forecast": {
                "loss": "never",
                "seconds_to_loss": None,
                "caught_up": "now",
                "seconds_to_caught_up": 0,
            },
            "publication": {"name": "outbox_pub", "ok": True, "problem": None},
            "delivery": {"oldest_unacknowledged_seconds": 0},
            "culprit": None,
            "checks": [
                check("slot", "ok", "the slot is there and usable"),
                check("publication", "ok", "publication outbox_pub hides no row"),
                check("inactive", "ok", "somebody reads from the slot"),
                check(
                    "oldest_unacknowledged", "ok", "the oldest commit without an acknowledgement is 0s old"
                ),
                check("wal_status", "ok", "wal_status is reserved"),
                check("retained", "ok", "WAL kept 18.0 MiB of 4.0 GiB (0 %)"),
                check("time_to_loss", "ok", "never lost at this rate"),
            ],
            "next": None,
            "advice": None,
        },
        "lsn": {"received": "3A/92D00118", "confirmed": "3A/92CF1A40"},
        "inflight": {"events": 0, "bytes": 0},
        "events": {"received": 118204411, "published": 118203902, "skipped": {"only": 509}},
        "topics": {
            "outbox.event.order": 71530219,
            "outbox.event.payment": 31877140,
            "outbox.event.shipment": 12004821,
            "outbox.event.customer": 2791722,
        },
        "errors": [],
        "mapping": {
            "public.outbox": "id from id, key from aggregate_id, topic outbox.event.{aggregate_type}, payload as it is"
        },
        "faults": [],
        "delivery": {"oldest_unacknowledged_seconds": 0, "last_acknowledged_at": moment(0.4)},
        "throughput": {"events_per_second": 431.7},
        "latency": {"p50_seconds": 0.0021, "p99_seconds": 0.0083},
        "history": history(_calm),
    }


def broker_away() -> Status:
    """No broker for four minutes, under load."""
    away = 244

    def shape(age: float, chance: random.Random) -> dict[str, Any]:
        point = _calm(age, chance)
        if age < away:
            grown = int((away - age) * 0.42 * MIB)
            point |= {"events_per_second": 0, "p50_seconds": None, "p99_seconds": None}
            point["unconfirmed_bytes"] = MIB // 2 + grown
            point["retained_bytes"] = 20 * MIB + grown
        return point

    status = healthy()
    status |= {
        "state": "held",
        "reason": "no Kafka broker answers at kafka-1.example.org:9092, kafka-2.example.org:9092",
        "since": moment(away),
        "inflight": {"events": 61440, "bytes": 32 * MIB},
        "delivery": {"oldest_unacknowledged_seconds": away, "last_acknowledged_at": moment(away)},
        "throughput": {"events_per_second": 0},
        "latency": {"p50_seconds": None, "p99_seconds": None},
        "history": history(shape),
        "errors": [
            {
                "at": moment(away),
                "error": "no Kafka broker answers at kafka-1.example.org:9092, kafka-2.example.org:9092",
                "next": "see that the brokers run and can be reached from here; delivery goes on by itself",
            },
            {
                "at": moment(9000),
                "error": "PostgreSQL ended the connection: terminating connection due to administrator command",
                "next": "nothing: it connects again by itself",
            },
        ],
    }
    status["health"] |= {
        "status": "warning",
        "summary": (
            "held (no Kafka broker answers); the oldest commit without an acknowledgement is 4m old; "
            "103.0 MiB not confirmed, and no acknowledgement for 4m; "
            "WAL kept 122.0 MiB of 4.0 GiB (3 %), lost in about 2h 40m at 420.0 KiB/s"
        ),
        "forecast": {
            "loss": "in",
            "seconds_to_loss": 9630,
            "caught_up": "never",
            "seconds_to_caught_up": None,
        },
        "next": (
            "see what the relay says at /status and in its log, and what comes next: "
            "cdc-outbox peek --slot outbox_slot"
        ),
        "checks": [
            check(
                "oldest_unacknowledged", "warning", "the oldest commit without an acknowledgement is 4m old"
            ),
            check("stalled", "warning", "103.0 MiB not confirmed, and no acknowledgement for 4m"),
            check("time_to_loss", "warning", "lost in about 2h 40m at 420.0 KiB/s"),
            *(each for each in status["health"]["checks"] if each["name"] in ("slot", "publication")),
        ],
    }
    status["health"]["slot"] |= {"unconfirmed_bytes": 103 * MIB, "retained_bytes": 122 * MIB}
    return status


def near_limit() -> Status:
    """A transaction elsewhere has been open for hours: the relay delivers, and the disk still fills."""

    def shape(age: float, chance: random.Random) -> dict[str, Any]:
        kept = 3.16 * GIB - age * 0.41 * MIB
        return _calm(age, chance) | {"retained_bytes": int(kept + chance.uniform(-4, 4) * MIB)}

    status = healthy()
    status["history"] = history(shape)
    status["health"] |= {
        "status": "critical",
        "summary": (
            f"active, caught up; {HOLDER}; "
            "WAL kept 3.2 GiB of 4.0 GiB (79 %), lost in about 35m at 420.0 KiB/s"
        ),
        "forecast": {"loss": "in", "seconds_to_loss": 2125, "caught_up": "now", "seconds_to_caught_up": 0},
        "culprit": {
            "kind": "transaction",
            "pid": 20817,
            "gid": None,
            "slot": None,
            "user": "reporting",
            "application": "metabase",
            "database": "app",
            "age_seconds": 7860,
            "query_start": moment(7815),
            "held_bytes": int(3.14 * GIB),
            "message": HOLDER,
        },
        "next": "let that transaction end, or end it: select pg_terminate_backend(20817);",
        "checks": [
            check("retained", "critical", "WAL kept 3.2 GiB of 4.0 GiB (79 %)", 0.79),
            check("time_to_loss", "critical", "lost in about 35m at 420.0 KiB/s", 2125),
            check("wal_status", "warning", "wal_status is extended"),
            *(each for each in status["health"]["checks"] if each["name"] in ("slot", "publication")),
        ],
    }
    status["health"]["slot"] |= {
        "retained_bytes": int(3.16 * GIB),
        "safe_wal_bytes": int(0.85 * GIB),
        "wal_status": "extended",
    }
    return status


def starting() -> Status:
    """A relay in its first seconds: nothing measured, nothing sent."""
    status = healthy()
    return status | {
        "state": "connecting",
        "since": moment(2),
        "health": None,
        "lsn": {"received": None, "confirmed": None},
        "events": {"received": 0, "published": 0, "skipped": {}},
        "topics": {},
        "mapping": {},
        "delivery": {"oldest_unacknowledged_seconds": None, "last_acknowledged_at": None},
        "throughput": {"events_per_second": None},
        "latency": {"p50_seconds": None, "p99_seconds": None},
        "history": {"step_seconds": 10, "points": []},
    }
