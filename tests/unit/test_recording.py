"""The recording of the demo is a picture that plays by itself, made of the lines that a terminal showed."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

from tests.documents.recording import ROWS, TARGET, Line, in_time, picture, record

SVG = "{http://www.w3.org/2000/svg}"


def shown(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_run_is_recorded_with_its_colours() -> None:
    lines = record(
        [sys.executable, "-c", "import sys; print(sys.stdout.isatty()); print('\\x1b[31mno <&>\\x1b[0m yes')"]
    )
    assert [line.text for line in lines] == ["True", "\x1b[31mno <&>\x1b[0m yes"]
    svg = picture(lines)
    assert shown(svg) == ["True", "no <&> yes"]
    (red,) = ElementTree.fromstring(svg).iter(f"{SVG}tspan")
    assert (red.get("class"), red.text) == ("r", "no <&>")


def test_long_pauses_are_cut_and_the_last_screen_stays() -> None:
    lines = in_time([Line(0.0, "a"), Line(0.5, "b"), *(Line(60.0, str(n)) for n in range(ROWS))])
    assert [line.at for line in lines[:3]] == [0.0, 0.5, 1.5]
    svg = picture(lines)
    assert "animation:s 1.50s steps(1,end) forwards" in svg
    assert "100.0%{transform:translateY(-36px)}" in svg


def test_the_one_of_the_readme_is_whole() -> None:
    svg = TARGET.read_text()
    said = " ".join(" ".join(shown(svg)).split())
    assert said.startswith("$ cdc-outbox demo A shop's orders go two ways to Kafka")
    assert "The relay lost none of 70 events" in said
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert len(svg) < 20_000
