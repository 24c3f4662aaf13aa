"""Large blocks have mappings of their own, where the C library can be told so."""

from __future__ import annotations

import platform

from cdc_outbox.memory import keep_flat


def test_the_c_library_is_told_where_it_listens() -> None:
    assert keep_flat() is (platform.libc_ver()[0] == "glibc")
