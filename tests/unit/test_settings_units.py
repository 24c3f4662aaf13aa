"""Durations and sizes."""

from __future__ import annotations

import pytest

from cdc_outbox.settings.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604_800),
        ("1.5s", 1.5),
        (" 1 s ", 1),
        ("0s", 0),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1e3s", "1 minute", "1S", "1m30s", "٣s", "1.s"])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a number and a unit"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16MiB", 16 * 2**20),
        ("512KiB", 2**19),
        ("1GiB", 2**30),
        ("64kB", 64_000),
        ("5MB", 5_000_000),
        ("42", 42),
        ("1.5KiB", 1536),
        ("8B", 8),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1mib", "1Mib", "1.5", "0.3KiB", "1 000"])
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a size is"):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "200ms"), (90, "90s"), (3600, "1h"), (0, "0s"), (0.0001, "0.1ms")]
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(2**25, "32MiB"), (1000, "1000"), (0, "0"), (1536, "1536")])
def test_format_size(size: int, text: str) -> None:
    assert format_size(size) == text
