"""deploy/grafana: Prometheus' own check of its configuration."""

from pathlib import Path

from linters import DEPLOY, lint


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    text = (DEPLOY / "grafana" / "prometheus.yml").read_text()
    config = tmp_path / "prometheus.yml"
    config.write_text(text)
    done = lint("promtool", "check", "config", "--syntax-only", config)
    assert done.returncode == 0, done.stderr
    config.write_text(text.replace("scrape_configs:", "scrape_confgis:"))
    assert lint("promtool", "check", "config", "--syntax-only", config).returncode != 0
