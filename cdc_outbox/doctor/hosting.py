"""Where PostgreSQL runs, and how that place wants its settings and rights changed.

Each provider leaves signs that any role can see: settings with a prefix of its own, roles, functions. `detect` goes by
these alone. The remedies are commands to paste; words in capitals are to be replaced by names that a database doesn't
know of itself.

https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/Appendix.PostgreSQL.CommonDBATasks.html
https://docs.aws.amazon.com/AmazonRDS/latest/AuroraUserGuide/AuroraPostgreSQL.Replication.Logical.Configure.html
https://cloud.google.com/sql/docs/postgres/replication/configure-logical-replication
https://learn.microsoft.com/azure/postgresql/configure-maintain/concepts-logical
https://supabase.com/docs/guides/database/custom-postgres-config
https://neon.com/docs/guides/logical-replication-neon
https://cloudnative-pg.io/docs/current/postgresql_conf/
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Final

from cdc_outbox.event import quote


class Hosting(enum.Enum):
    """Who runs the server."""

    SELF_HOSTED = "self-hosted"
    RDS = "Amazon RDS"
    AURORA = "Amazon Aurora"
    CLOUD_SQL = "Google Cloud SQL"
    AZURE = "Azure Database"
    SUPABASE = "Supabase"
    NEON = "Neon"
    CLOUDNATIVEPG = "CloudNativePG"


@dataclass(frozen=True, slots=True)
class Signs:
    """What a server shows of its host: prefixes of its settings, of `PREFIXES`; roles, of `ROLES`; functions."""

    prefixes: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


PREFIXES: Final = ("rds", "cloudsql", "azure", "neon", "cnpg")
ROLES: Final = (
    "rds_superuser",
    "cloudsqlsuperuser",
    "azure_pg_admin",
    "supabase_admin",
    "neon_superuser",
    "streaming_replica",
)
FUNCTIONS: Final = ("aurora_version",)


def detect(signs: Signs) -> Hosting:
    """The host that these signs are of; self-hosted where there are none."""
    if "aurora_version" in signs.functions:
        return Hosting.AURORA
    for hosting, prefix, role in (
        (Hosting.RDS, "rds", "rds_superuser"),
        (Hosting.CLOUD_SQL, "cloudsql", "cloudsqlsuperuser"),
        (Hosting.AZURE, "azure", "azure_pg_admin"),
        (Hosting.NEON, "neon", "neon_superuser"),
        (Hosting.SUPABASE, None, "supabase_admin"),
        (Hosting.CLOUDNATIVEPG, "cnpg", "streaming_replica"),
    ):
        if prefix in signs.prefixes or role in signs.roles:
            return hosting
    return Hosting.SELF_HOSTED


@dataclass(frozen=True, slots=True)
class Setting:
    """A server setting with the value that it should have, and as consoles want it: a number in its base unit."""

    name: str
    value: str
    number: str = ""
    restart: bool = False

    @property
    def plain(self) -> str:
        return self.number or self.value


LOGICAL: Final = Setting("wal_level", "logical", restart=True)


_OWN_NAMES: Final = {
    Hosting.RDS: ("rds.logical_replication", "1"),
    Hosting.AURORA: ("rds.logical_replication", "1"),
    Hosting.CLOUD_SQL: ("cloudsql.logical_decoding", "on"),
}
"""What `wal_level = logical` is called there."""

_RESTART: Final = {
    Hosting.SELF_HOSTED: "restart PostgreSQL",
    Hosting.RDS: "aws rds reboot-db-instance --db-instance-identifier INSTANCE",
    Hosting.AURORA: "aws rds reboot-db-instance --db-instance-identifier WRITER",
    Hosting.AZURE: "az postgres flexible-server restart --resource-group GROUP --name SERVER",
}
"""How to restart where changing a setting doesn't do it."""


def change(hosting: Hosting, setting: Setting) -> str:
    """How a setting is changed there, restart included where it takes one."""
    steps = [_change(hosting, setting)]
    if setting.restart and hosting in _RESTART:
        steps.append(_RESTART[hosting])
    elif hosting is Hosting.SELF_HOSTED:
        steps.append("select pg_reload_conf();")
    return "\n".join(steps)


def _change(hosting: Hosting, setting: Setting) -> str:
    name, value = setting.name, setting.plain
    if setting == LOGICAL:
        name, value = _OWN_NAMES.get(hosting, (name, value))
    if hosting in (Hosting.RDS, Hosting.AURORA):
        kind = "cluster-" if hosting is Hosting.AURORA else ""
        method = "pending-reboot" if setting.restart else "immediate"
        return (
            f"aws rds modify-db-{kind}parameter-group --db-{kind}parameter-group-name GROUP --parameters"
            f" 'ParameterName={name},ParameterValue=\"{value}\",ApplyMethod={method}'"
        )
    if hosting is Hosting.CLOUD_SQL:
        return f"gcloud sql instances patch INSTANCE --database-flags={name}={value},OTHER_FLAGS_AS_THEY_ARE"
    if hosting is Hosting.AZURE:
        return (
            "az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER"
            f" --name {name} --value '{value}'"
        )
    if hosting is Hosting.SUPABASE:
        return (
            "supabase --experimental --project-ref PROJECT postgres-config update"
            f" --config {name}='{setting.value}'"
        )
    if hosting is Hosting.NEON and setting == LOGICAL:
        return (
            "curl -X PATCH https://console.neon.tech/api/v2/projects/PROJECT -H 'Authorization: Bearer API_KEY'"
            " -H 'Content-Type: application/json'"
            """ -d '{"project": {"settings": {"enable_logical_replication": true}}}'"""
        )
    if hosting is Hosting.NEON:
        return f"ask Neon's support for {name} = {setting.value}: it is not yours to set there"
    if hosting is Hosting.CLOUDNATIVEPG:
        parameters = json.dumps({"spec": {"postgresql": {"parameters": {name: setting.value}}}})
        return f"kubectl patch cluster CLUSTER --type merge --patch '{parameters}'"
    return f"alter system set {name} = '{setting.value}';"


def let_replicate(hosting: Hosting, role: str) -> str:
    """How a role gets the right to replicate there."""
    name = quote(role)
    match hosting:
        case Hosting.RDS | Hosting.AURORA:
            return f"grant rds_replication to {name};"
        case Hosting.CLOUDNATIVEPG:
            return (
                f"add replication: true to the role {name} under spec.managed.roles of the Cluster, or"
                f"\nkubectl cnpg psql CLUSTER -- -c 'alter role {name} replication'"
            )
        case Hosting.NEON:
            return (
                f"alter role {name} replication;\nor make the role in Neon's console, by its CLI or API: those"
                " may replicate"
            )
        case _:
            return f"alter role {name} replication;"


def let_in(hosting: Hosting, role: str, database: str) -> str:
    """How a connection for logical replication is admitted: as an ordinary one to that database."""
    name, where = quote(role), quote(database)
    line = f"hostssl {where} {name} ADDRESS/32 scram-sha-256"
    match hosting:
        case Hosting.RDS | Hosting.AURORA:
            return "let this machine's address into the security group of the database, and check user and password"
        case Hosting.CLOUD_SQL:
            return "gcloud sql instances patch INSTANCE --authorized-networks=OTHERS_AS_THEY_ARE,ADDRESS/32"
        case Hosting.AZURE:
            return (
                "az postgres flexible-server firewall-rule create --resource-group GROUP --name SERVER"
                " --rule-name cdc-outbox --start-ip-address ADDRESS --end-ip-address ADDRESS"
            )
        case Hosting.SUPABASE:
            return (
                "supabase --experimental --project-ref PROJECT network-restrictions update"
                " --db-allow-cidr ADDRESS/32"
            )
        case Hosting.NEON:
            return "let this machine's address in under Settings, Network security, IP Allow of the project"
        case Hosting.CLOUDNATIVEPG:
            return f'add "{line}" to spec.postgresql.pg_hba of the Cluster'
        case Hosting.SELF_HOSTED:
            return f"add to pg_hba.conf: {line}\nselect pg_reload_conf();"


def direct(hosting: Hosting) -> str:
    """How to reach the server itself, where a pooler answers."""
    match hosting:
        case Hosting.SUPABASE:
            return "use the direct connection in the DSN: db.PROJECT.supabase.co, port 5432 (IPv6, or the IPv4 add-on)"
        case Hosting.NEON:
            return "use the direct host in the DSN: the name without -pooler"
        case Hosting.AZURE:
            return "use port 5432 in the DSN, not the built-in PgBouncer's 6432"
        case Hosting.RDS | Hosting.AURORA:
            return "use the instance's or cluster's own endpoint in the DSN, not that of RDS Proxy"
        case Hosting.CLOUDNATIVEPG:
            return "use the service CLUSTER-rw in the DSN, not that of a Pooler"
        case _:
            return "use PostgreSQL's own address in the DSN (usually port 5432), not a pooler's such as PgBouncer"


SLOT_REMOVED: Final = {
    Hosting.NEON: "Neon removes a slot that was inactive for about 40 hours while others are active"
}
"""What a provider does to a slot by itself."""
