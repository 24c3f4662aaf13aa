"""What a sample asks for."""

from __future__ import annotations

from cdc_outbox.watch.sample import Limits, query
from tests.unit.sampled import MIB, sample


def test_pg_wal_is_listed_only_where_its_size_counts() -> None:
    """Each file costs the server time, and there are most of them when it has least to spare."""
    listing = "from pg_catalog.pg_ls_waldir()"
    limited = sample(may_list_wal=True)
    unlimited = sample(may_list_wal=True, limits=Limits(None, 0, 16 * MIB))
    assert listing in query(unlimited, lists_wal=True)
    assert listing not in query(unlimited), "a relay, which has no volume's size to compare it with"
    assert listing not in query(limited, lists_wal=True)
    assert listing not in query(sample(limits=unlimited.limits), lists_wal=True)
    assert listing not in query(None, lists_wal=True)
