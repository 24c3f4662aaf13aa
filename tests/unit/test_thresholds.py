"""How thresholds are spelled, where they may stand, and that the documents tell the ones that count."""

from __future__ import annotations

import re
import tomllib

import pytest

from cdc_outbox.settings import HealthSettings
from cdc_outbox.settings.signal import SIGNALS, threshold
from cdc_outbox.watch.thresholds import DEFAULTS, Threshold, Thresholds
from tests.servers.cache import CHECKOUT


@pytest.mark.parametrize(
    ("signal", "spelled", "value"),
    [
        ("retained", "50%", 0.5),
        ("retained", "0.4", 0.4),
        ("retained_bytes", "1GiB", 2**30),
        ("time_to_loss", "6h", 21_600.0),
        ("wal_status", "LOST", "lost"),
        ("catalog_xmin_age", "100M", 10**8),
        ("catalog_xmin_age", "1.5k", 1500),
        ("inactive", "off", None),
    ],
)
def test_spellings(signal: str, spelled: str, value: object) -> None:
    assert threshold(signal, spelled) == value


@pytest.mark.parametrize(
    ("signal", "spelled"),
    [
        ("retained", "0%"),
        ("retained", "150%"),
        ("retained", "1GiB"),
        ("retained_bytes", "50%"),
        ("time_to_loss", "6"),
        ("wal_status", "bad"),
        ("catalog_xmin_age", "0"),
        ("catalog_xmin_age", "-1"),
        ("inactive", ""),
    ],
)
def test_others_are_refused(signal: str, spelled: str) -> None:
    with pytest.raises(ValueError, match=r"^(it|a) "):
        threshold(signal, spelled)


def test_the_settings_go_over_the_defaults() -> None:
    found = Thresholds.of(HealthSettings({"inactive": "2m"}, {"retained": "off"}))
    assert found.inactive == Threshold(120.0, 600.0)
    assert found.retained == Threshold(0.5, None)
    assert set(DEFAULTS) == set(SIGNALS)


def test_the_example_file_tells_the_defaults() -> None:
    text = (CHECKOUT / "docs" / "examples" / "cdc-outbox.toml").read_text()
    told = tomllib.loads(re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE))["health"]
    assert told == {
        level: {signal: pair[place] for signal, pair in DEFAULTS.items()}
        for place, level in enumerate(("warning", "critical"))
    }


def test_the_reference_tells_the_defaults() -> None:
    text = (CHECKOUT / "docs" / "reference" / "health.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| `?([^|`]+)`? \| `?([^|`]+)`? \|$", text, re.MULTILINE)
    assert {signal: (warning, critical) for signal, warning, critical in rows} == DEFAULTS
