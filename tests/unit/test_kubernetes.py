"""The manifests: kustomize builds them, by their page's commands too, and they are as the published schemas want them.

Kubernetes' schemas come from the package kubernetes-validate, the Prometheus operator's from the npm package
@kubernetes-models/prometheus-operator. No cluster is asked, for none can be had here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate.utils import ValidationError, validate

from tests.servers import kubectl
from tests.servers.cache import CHECKOUT, cache_root, cached, run
from tests.servers.relay import run_command
from tests.servers.shell import FENCE, Shell, blocks, path_of, shell_of_checkout

MANIFESTS = CHECKOUT / "docker" / "kubernetes"
PAGE = (CHECKOUT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
BLOCKS = blocks(PAGE)
VERSIONS = ("1.27", "1.30", "1.33", "1.37")
OPERATOR = "@kubernetes-models/prometheus-operator"
OPERATOR_VERSION = "6.0.0"

Manifest = dict[str, Any]

JUDGE = f"""
import * as models from "{OPERATOR}/monitoring.coreos.com/v1";
import {{ readFileSync }} from "fs";
for (const manifest of JSON.parse(readFileSync(0))) new models[manifest.kind](manifest).validate();
"""


def test_each_block_is_run_or_says_why_not() -> None:
    assert list(BLOCKS) == ["secrets", "overlay", "init"]
    assert len(FENCE.findall(PAGE)) == len(BLOCKS) + PAGE.count("<!-- not run: ")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell that stands where the manifests are, as in a checkout."""
    place = tmp_path_factory.mktemp("kubernetes")
    shutil.copytree(MANIFESTS, place / "docker" / "kubernetes")
    return shell_of_checkout(
        place,
        PATH=os.pathsep.join((path_of(Path(sys.prefix)), str(kubectl.directory()))),
        RELAY_DSN="postgresql://relay:planted-one@db/app",
        OWNER_DSN="postgresql://owner:planted-two@db/app",
        KAFKA="kafka.example.org:9092",
        IMAGE="registry.example.org/cdc-outbox",
    )


@pytest.fixture(scope="module")
def made(shell: Shell) -> list[Manifest]:
    """What the page's overlay comes to: relay, monitoring, and the job before them."""
    built = [shell.run(BLOCKS[name]).stdout for name in ("overlay", "init")]
    return [manifest for text in built for manifest in yaml.safe_load_all(text)]


def of(made: list[Manifest], kind: str) -> Manifest:
    (found,) = (manifest for manifest in made if manifest["kind"] == kind)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_they_are_as_kubernetes_wants_them(made: list[Manifest], version: str) -> None:
    ours = [manifest for manifest in made if "monitoring.coreos.com" not in manifest["apiVersion"]]
    assert len(ours) == 7
    for manifest in ours:
        validate(manifest, version, strict=True)


def test_a_misspelt_key_would_be_found(made: list[Manifest]) -> None:
    misspelt = json.loads(
        json.dumps(of(made, "Deployment")).replace("readOnlyRootFilesystem", "readOnlyRootFileSystem")
    )
    with pytest.raises(ValidationError):
        validate(misspelt, VERSIONS[-1], strict=True)


def operator_models() -> Path:
    def install(draft: Path) -> None:
        flags = ["--no-save", "--no-package-lock", "--ignore-scripts"]
        run(
            ["npm", "install", *flags, "--prefix", draft, f"{OPERATOR}@{OPERATOR_VERSION}"],
            what="the schemas of the Prometheus operator",
        )

    return cached(cache_root() / "kubernetes" / f"operator-{OPERATOR_VERSION}", install)


def judged(manifests: list[Manifest]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", "--input-type=module", "--eval", JUDGE],
        input=json.dumps(manifests),
        capture_output=True,
        text=True,
        cwd=operator_models(),
        timeout=60,
        check=False,
    )


def test_they_are_as_the_prometheus_operator_wants_them(made: list[Manifest]) -> None:
    monitor, rule = of(made, "ServiceMonitor"), of(made, "PrometheusRule")
    done = judged([monitor, rule])
    assert done.returncode == 0, done.stderr
    monitor["spec"]["endpoints"][0]["interval"] = "often"
    assert judged([monitor]).returncode != 0


def test_the_rule_is_made_from_the_alerts() -> None:
    script = MANIFESTS / "monitoring" / "prometheusrule.py"
    spec = spec_from_file_location("prometheusrule", script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert script.with_suffix(".yaml").read_text() == module.manifest(), "make manifests"
    alerts = yaml.safe_load((CHECKOUT / "docker" / "prometheus" / "alerts.yaml").read_text())
    assert yaml.safe_load(module.manifest())["spec"] == alerts


def test_the_settings_of_the_pods_are_settings(shell: Shell, made: list[Manifest], tmp_path: Path) -> None:
    """The file in the base and that of the page's overlay are the same, but for Kafka's address."""
    base = (MANIFESTS / "cdc-outbox.toml").read_text()
    overlay = (shell.home / "deploy" / "cdc-outbox.toml").read_text()
    theirs, ours = tomllib.loads(base), tomllib.loads(overlay)
    assert ours.pop("kafka") == {"bootstrap_servers": "kafka.example.org:9092"}
    theirs.pop("kafka")
    assert theirs == ours
    file = tmp_path / "cdc-outbox.toml"
    file.write_text(base)
    done = run_command("config", "validate", "--config", str(file))
    assert done.returncode == 0, done.stderr


def test_the_pods_find_their_secrets_and_the_monitor_its_token(shell: Shell, made: list[Manifest]) -> None:
    shell.run(BLOCKS["secrets"])
    secret, owner = (
        yaml.safe_load((shell.home / name).read_text()) for name in ("secret.yaml", "owner-secret.yaml")
    )
    relay, init = (of(made, kind)["spec"]["template"]["spec"] for kind in ("Deployment", "Job"))
    for pod, given, keys in ((relay, secret, {"relay_dsn", "http_token"}), (init, owner, {"owner_dsn"})):
        (volume,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
        assert volume["secretName"] == given["metadata"]["name"]
        assert set(given["data"]) == keys
        (container,) = pod["containers"]
        asked = {each["value"] for each in container["env"] if each["name"].endswith("_FILE")}
        assert asked == {f"/run/secrets/cdc-outbox/{key}" for key in keys - {"http_token"}}
    assert relay["containers"][0]["image"] == "registry.example.org/cdc-outbox:1.0"
    credentials = of(made, "ServiceMonitor")["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert credentials == {"name": "cdc-outbox", "key": "http_token"}
    assert (
        of(made, "Service")["spec"]["selector"].items()
        <= of(made, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    )


def test_they_are_alive_by_livez_and_ready_by_readyz(made: list[Manifest]) -> None:
    (relay,) = of(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    paths = {name: relay[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    (port,) = (port["containerPort"] for port in relay["ports"] if port["name"] == "http")
    assert tomllib.loads((MANIFESTS / "cdc-outbox.toml").read_text())["http"]["listen"] == f"0.0.0.0:{port}"


def test_the_pods_are_restricted_and_have_time_to_drain(made: list[Manifest]) -> None:
    """By Kubernetes' standard of that name, which the namespace enforces."""
    assert of(made, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for kind in ("Deployment", "Job"):
        pod = of(made, kind)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not pod["automountServiceAccountToken"]
    deployment = of(made, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    drain = re.search(
        r'^#drain = "(\d+)s"', (CHECKOUT / "docs/examples/cdc-outbox.toml").read_text(), re.MULTILINE
    )
    assert drain is not None
    assert deployment["template"]["spec"]["terminationGracePeriodSeconds"] > int(drain[1])
