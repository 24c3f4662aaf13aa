"""Writes prometheusrule.yaml: the alerts of docker/prometheus/alerts.yaml as the Prometheus operator wants them."""

from __future__ import annotations

import textwrap
from pathlib import Path

HERE = Path(__file__).parent
ALERTS = HERE.parents[1] / "prometheus" / "alerts.yaml"
MANIFEST = HERE / "prometheusrule.yaml"

HEAD = """\
# Made by prometheusrule.py from docker/prometheus/alerts.yaml: change it there, and run `make manifests`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: cdc-outbox
  namespace: cdc-outbox
  labels:
    app.kubernetes.io/name: cdc-outbox
spec:
"""


def manifest() -> str:
    """The manifest's text."""
    _, groups = ALERTS.read_text().split("\ngroups:\n")
    return HEAD + textwrap.indent(f"groups:\n{groups}", "  ")


if __name__ == "__main__":
    MANIFEST.write_text(manifest())
