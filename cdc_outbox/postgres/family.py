"""A table with its partitions, at every level, as the start of a query.

Without pg_partition_tree(), which locks each partition for a moment, and so waits for whoever empties or rebuilds an
old one. What merely inherits from a table that isn't partitioned is another table, and none of the family.
"""

from __future__ import annotations

from typing import Final, LiteralString

_NAMED: Final[LiteralString] = """
with recursive named (relation) as (
    select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = %s and c.relname = %s),
"""

_FAMILY: Final[LiteralString] = """
family (relation) as (
    {root} union all
    select i.inhrelid from family f join pg_catalog.pg_inherits i on i.inhparent = f.relation
      join pg_catalog.pg_class c on c.oid = i.inhrelid and c.relispartition)
"""

FAMILY: Final[LiteralString] = _NAMED + _FAMILY.replace("{root}", "select relation from named")
"""Binds `named` and `family`, each with the column `relation` (oid). Its parameters are schema and name."""

FAMILY_OF_OID: Final[LiteralString] = "with recursive" + _FAMILY.replace("{root}", "select %s::oid")
"""Binds `family`. Its parameter is the table's OID."""

FAMILY_OF_ROW: Final[LiteralString] = "with recursive" + _FAMILY.replace(
    "{root}", "select c.oid where c.relkind = 'p'"
)
"""Binds `family` in a subquery, for a row `c` of pg_class around it; empty for a table that isn't partitioned."""
