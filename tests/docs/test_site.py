"""The documentation site: it builds without a warning, has what comes from the code, and fetches nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

pytest.importorskip("material", reason="pip install -e '.[docs]'")
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_navigation(site: Path) -> None:
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")}
    missing = [page for page in pages if not (site / page).is_file()]
    assert not missing
    start = (site / "index.html").read_text(encoding="utf-8")
    assert not [page for page in pages if f'href="{page}"' not in start and page != "index.html"]


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"' >]+)""")
    for page in site.rglob("*.html"):
        assert loads.findall(page.read_text(encoding="utf-8")) == [], page.name
    for style in site.rglob("*.css"):
        found = re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]+)", style.read_text(encoding="utf-8"))
        assert found == [], style.name


def test_what_the_code_knows_is_there(site: Path) -> None:
    commands = (site / "commands.html").read_text(encoding="utf-8")
    for words in ("farflung join", "farflung coordinator start", "--link-file FILE", "farflung codecs measure"):
        assert words in commands
    helm = (site / "deploy" / "helm.html").read_text(encoding="utf-8")
    assert "coordinator.advertise" in helm and 'href="docker.html"' in helm
