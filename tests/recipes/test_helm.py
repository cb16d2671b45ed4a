"""deploy/helm: Helm's own lint and renderer (its Go SDK), and Kubernetes' schemas for what comes out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from linters import DEPLOY
from words import check_words

from farflung.job.files import load_job

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "link": {"link": "farflung://h:1/#abc", "nodes": {"replicas": 0}},
    "nodes elsewhere": {"coordinator": {"enabled": False}, "existingSecret": "my-link"},
    "all": {
        "coordinator": {
            "advertise": "203.0.113.7:7070",
            "service": {"type": "LoadBalancer"},
            "storage": {"className": "fast"},
            "data": {"persistentVolumeClaim": {"claimName": "text"}},
        },
        "nodes": {"allowCode": ["mymodel"], "nodeSelector": {"gpu": "l4"}, "tolerations": []},
    },
}


@pytest.fixture(scope="module")
def chart() -> Any:
    module = pytest.importorskip("helm_python.chart", reason="helm-python-sdk: pip install -e '.[lint-deploy]'")
    loaded = module.Chart.load(DEPLOY / "helm" / "farflung")
    yield loaded
    loaded.close()


def rendered(chart: Any, values: dict[str, Any]) -> list[dict[str, Any]]:
    files = chart.render(values, name="tune", namespace="ml")
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def containers(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in manifests:
        if one["kind"] in ("Deployment", "StatefulSet"):
            assert one["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
            yield from one["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_helm_lint_finds_nothing(values: dict[str, Any]) -> None:
    module = pytest.importorskip("helm_python.chart", reason="helm-python-sdk: pip install -e '.[lint-deploy]'")
    report = module.lint(DEPLOY / "helm" / "farflung", values, strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_the_chart_refuses_values_that_it_does_not_know(chart: Any) -> None:
    chart.validate_schema({"nodes": {"replicas": 3}})
    for wrong in ({"nodes": {"replica": 3}}, {"link": "http://x"}, {"coordinator": {"advertise": "no-port"}}):
        with pytest.raises(Exception, match=r"not allowed|does not match pattern"):
            chart.validate_schema(wrong)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_kubernetes_accepts_what_it_renders(values: dict[str, Any], chart: Any) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install -e '.[lint-deploy]'")
    manifests = rendered(chart, values)
    assert manifests
    for version in ("1.31", "1.36"):
        for one in manifests:
            validator.validate(one, version, strict=True)
    broken = {**manifests[-1], "spec": {**manifests[-1]["spec"], "replikas": 1}}
    with pytest.raises(validator.ValidationError):
        validator.validate(broken, "1.36", strict=True)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_farflung_accepts_the_commands(values: dict[str, Any], chart: Any) -> None:
    for container in containers(rendered(chart, values)):
        environment = {one["name"]: one for one in container.get("env", [])}
        check_words(container["args"], link_in_environment="FARFLUNG_LINK" in environment)
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"startupProbe", "livenessProbe"} <= container.keys()


def test_what_belongs_together_has_the_same_name(chart: Any) -> None:
    manifests = {(one["kind"], one["metadata"]["name"]): one for one in rendered(chart, CASES["link"])}
    secret = manifests["Secret", "tune-link"]
    assert secret["stringData"] == {"link": "farflung://h:1/#abc"}
    [node] = manifests["Deployment", "tune-node"]["spec"]["template"]["spec"]["containers"]
    assert node["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "tune-link", "key": "link"}
    service = manifests["Service", "tune-coordinator"]["spec"]
    stateful = manifests["StatefulSet", "tune-coordinator"]["spec"]
    assert stateful["serviceName"] == "tune-coordinator"
    assert service["selector"].items() <= stateful["template"]["metadata"]["labels"].items()
    [coordinator] = stateful["template"]["spec"]["containers"]
    assert "--advertise=tune-coordinator.ml.svc:7070" in coordinator["args"]
    assert manifests["ConfigMap", "tune-coordinator"]["data"].keys() == {"job.toml"}


def test_the_page_does_not_leave_the_cluster_with_the_nodes_port(chart: Any) -> None:
    found = [one for one in rendered(chart, CASES["all"]) if one["kind"] == "Service"]
    services = {one["metadata"]["name"]: one["spec"] for one in found}
    assert services["tune-coordinator"]["type"] == "LoadBalancer"
    assert [port["name"] for port in services["tune-coordinator"]["ports"]] == ["grpc"]
    assert services["tune-coordinator-page"]["type"] == "ClusterIP"
    assert [port["name"] for port in services["tune-coordinator-page"]["ports"]] == ["page"]
    assert services["tune-coordinator-page"]["selector"] == services["tune-coordinator"]["selector"]


def test_the_default_job_loads(chart: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("to be or not to be " * 100)
    (tmp_path / "job.toml").write_text(chart.values["coordinator"]["job"])
    assert load_job(tmp_path / "job.toml").model.layers == 12


def test_nodes_elsewhere_come_without_a_coordinator(chart: Any) -> None:
    assert [one["kind"] for one in rendered(chart, CASES["nodes elsewhere"])] == ["Deployment"]
