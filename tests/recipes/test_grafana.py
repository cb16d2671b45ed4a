"""deploy/grafana: the dashboard names only metrics that exist; compose and Prometheus' file agree with each other."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from linters import DEPLOY
from words import check_words

from farflung.coordinator.observe import metrics as run_metrics
from farflung.node.io import metrics as node_metrics

FOLDER = DEPLOY / "grafana"
DASHBOARD = json.loads((FOLDER / "dashboards" / "farflung.json").read_text())
LABELS = {one.name: set(one.labels) for one in run_metrics.NAMES}
LABELS |= {one.name: {one.label} - {""} for one in node_metrics.NAMES}
KINDS = {one.name: one.kind for one in (*run_metrics.NAMES, *node_metrics.NAMES)}
FROM_PROMETHEUS = {"job", "instance", "le"}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (one["expr"] for one in DASHBOARD["annotations"]["list"])
    yield from (one["query"]["query"] for one in DASHBOARD["templating"]["list"])


def named(expression: str) -> list[str]:
    return re.findall(r"\bfarflung_[a-z0-9_]+", expression)


def base(name: str) -> str:
    return name if name in KINDS else re.sub(r"_(bucket|sum|count)$", "", name)


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_names_metrics_and_labels_that_exist(expression: str) -> None:
    for name in named(expression):
        assert base(name) in KINDS, name
        assert (base(name) != name) == (KINDS[base(name)] == "histogram")
    known = set().union(*(LABELS[base(name)] for name in named(expression))) | FROM_PROMETHEUS
    for text in re.findall(r"\{([^}]*)\}", expression):
        assert {part.split("=")[0].rstrip("!") for part in text.split(",")} <= known
    for text in re.findall(r"\b(?:by|without|ignoring|on) ?\(([^)]*)\)", expression):
        assert {part.strip() for part in text.split(",")} <= known
    assert expression.count("(") == expression.count(")")


def test_counters_are_rates_and_legends_have_their_labels() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            names = named(target["expr"])
            for name in names:
                if KINDS[base(name)] != "gauge":
                    assert re.search(rf"(rate|increase)\({name}\b", target["expr"]), target["expr"]
            labels = set().union(*(LABELS[base(name)] for name in names)) | FROM_PROMETHEUS
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_every_metric_of_the_run_is_on_the_dashboard() -> None:
    shown = {base(name) for expression in expressions() for name in named(expression)}
    assert shown >= {one.name for one in run_metrics.NAMES}


def test_panels_do_not_overlap_and_have_one_data_source() -> None:
    taken: set[tuple[int, int]] = set()
    source = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells and at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["title"] and panel["datasource"]["uid"] == source["uid"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


def test_compose_starts_what_exists() -> None:
    for name in ("coordinator", "node"):
        check_words(services()[name]["command"].split())
    folders = {"prometheus": "../grafana", "grafana": "../grafana"}
    for name, prefix in folders.items():
        for mount in services()[name]["volumes"]:
            source = mount["source"] if isinstance(mount, dict) else mount.split(":")[0]
            if source.startswith(prefix):
                assert (DEPLOY / "compose" / source).exists(), source
    providers = yaml.safe_load((FOLDER / "provisioning" / "dashboards" / "farflung.yml").read_text())["providers"]
    assert any(mount.split(":")[1] == providers[0]["options"]["path"] for mount in services()["grafana"]["volumes"])


def test_prometheus_sees_a_token_and_a_certificate_and_no_key() -> None:
    [mount] = [one for one in services()["prometheus"]["volumes"] if isinstance(one, dict)]
    assert mount["source"] == "state" and mount["volume"] == {"subpath": "scrape"} and mount["read_only"]
    assert services()["prometheus"]["depends_on"]["coordinator"]["condition"] == "service_healthy"
    job = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"][0]
    files = {job["tls_config"]["ca_file"], job["authorization"]["credentials_file"]}
    assert files == {f"{mount['target']}/tls.pem", f"{mount['target']}/viewer.token"}


def test_grafana_has_no_user_with_a_default_password() -> None:
    environment = services()["grafana"]["environment"]
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false" and environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"


def test_prometheus_asks_where_compose_listens() -> None:
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    page = services()["coordinator"]["command"].split("--page ")[1].split()[0]
    assert jobs[0]["static_configs"][0]["targets"] == [f"coordinator:{page.rpartition(':')[2]}"]
    assert jobs[0]["tls_config"]["server_name"] == "coordinator" and jobs[0]["authorization"]["credentials_file"]
    port = services()["node"]["command"].split("--metrics ")[1].split()[0].rpartition(":")[2]
    assert jobs[1]["dns_sd_configs"][0]["port"] == int(port)
