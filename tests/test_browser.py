"""Le carnet 01 dans un vrai JupyterLab, piloté dans un vrai navigateur : tout s'exécute, un curseur bouge, l'exercice répond.

Il faut Chromium (paquet Debian `chromium`). MINIBATCHER_CHROMIUM donne son chemin s'il n'est pas dans le PATH ;
MINIBATCHER_CAPTURES, un dossier où garder les captures d'écran.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from minibatcher.course.build import build_notebook, notebook_text
from minibatcher.course.lessons import LESSONS

ROOT = Path(__file__).parents[1]
CHROMIUM = os.environ.get("MINIBATCHER_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
TOKEN = "essai"
WRONG = """%%exercice ex01
def batching_statique(longueurs, B):
    return 1, 0.5

def batching_continu(longueurs, B):
    return 1, 0.5
"""


def required(reason: str) -> None:
    """En CI, tout doit tourner ; ailleurs, ce qui manque se voit."""
    if os.environ.get("MINIBATCHER_REQUIRE_TOOLS"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def lab(tmp_path):
    """JupyterLab sur une copie des carnets, arrêté à la fin ; rend son adresse."""
    for lesson in LESSONS:
        if lesson.written:
            (tmp_path / f"{lesson.id}.ipynb").write_text(notebook_text(build_notebook(ROOT, lesson)), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        f"--ServerApp.root_dir={tmp_path}",
        f"--ServerApp.port={port}",
        f"--IdentityProvider.token={TOKEN}",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port_retries=0",
        "--ServerApp.allow_root=True",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=None",
        "--no-browser",
    ]
    folders = {name: str(tmp_path / ".jupyter" / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR")}
    folders["JUPYTERLAB_WORKSPACES_DIR"] = str(tmp_path / ".jupyter" / "workspaces")
    log = (tmp_path / "lab.log").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        stdout=log,
        stderr=log,
        env={**os.environ, **folders},
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/api/status?token={TOKEN}", timeout=5).close()
                break
            except OSError:
                tail = (tmp_path / "lab.log").read_text()[-2000:]
                assert server.poll() is None, f"JupyterLab s'est arrêté : {tail}"
                assert time.monotonic() < deadline, f"JupyterLab ne répond pas : {tail}"
                time.sleep(0.3)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


class Lesson:
    """Un carnet ouvert dans le navigateur."""

    def __init__(self, page, url: str, name: str, captures: Path) -> None:
        self.page, self.captures = page, captures
        page.goto(f"{url}/lab/tree/{name}?token={TOKEN}")
        page.wait_for_function(
            "window.jupyterapp && window.jupyterapp.shell.currentWidget?.content?.widgets?.length > 10", timeout=60_000
        )
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext?.session?.kernel?.status === 'idle'", timeout=60_000
        )

    def run_all(self) -> None:
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        self.page.wait_for_function(
            """() => {
                const panel = window.jupyterapp.shell.currentWidget;
                const waiting = panel.content.widgets.filter(c => c.model.type === 'code' && c.model.sharedModel.getSource().trim()
                    && (c.model.executionCount === null || c.model.executionState === 'running'));
                return !waiting.length && panel.sessionContext?.session?.kernel?.status === 'idle';
            }""",
            timeout=120_000,
        )

    def cells(self) -> list[dict]:
        """Source et sorties (texte, HTML, erreurs) de chaque cellule de code."""
        return self.page.evaluate(
            """() => window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code').map(c => ({
                source: c.model.sharedModel.getSource(), outputs: JSON.stringify(c.model.sharedModel.outputs)}))"""
        )

    def answer(self, source: str) -> str:
        """Remplace le contenu de la cellule d'exercice, l'exécute ; rend ce qu'elle affiche."""
        self.page.evaluate(
            """async (source) => {
                const panel = window.jupyterapp.shell.currentWidget;
                const index = panel.content.widgets.findIndex(c => c.model.sharedModel.getSource().startsWith('%%exercice'));
                panel.content.activeCellIndex = index;
                panel.content.widgets[index].model.sharedModel.setSource(source);
                await window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            source,
        )
        self.wait_until_idle()
        self.page.wait_for_timeout(300)
        return next(cell["outputs"] for cell in self.cells() if cell["source"].startswith("%%exercice"))

    def show_cell(self, text: str) -> None:
        """Fait défiler jusqu'à la cellule de code qui contient ce texte."""
        self.page.evaluate(
            """async (text) => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                const code = (cell) => cell.model.type === 'code' && cell.model.sharedModel.getSource().includes(text);
                notebook.activeCellIndex = notebook.widgets.findIndex(code);
                await notebook.scrollToItem(notebook.activeCellIndex, 'start');
            }""",
            text,
        )
        self.page.wait_for_timeout(1000)

    def capture(self, name: str) -> None:
        self.captures.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self.captures / f"{name}.png")


def test_lesson_in_the_browser(lab, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        required("Chromium est absent : installez le paquet chromium pour vérifier les carnets dans un navigateur.")
    captures = Path(os.environ.get("MINIBATCHER_CAPTURES", tmp_path / "captures"))
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1400, "height": 1000}, locale="fr-FR")
        lesson = Lesson(page, lab, "01_statique_vs_continu.ipynb", captures)
        lesson.run_all()
        for cell in lesson.cells():
            assert '"output_type":"error"' not in cell["outputs"], cell
        assert "à faire" in next(cell["outputs"] for cell in lesson.cells() if cell["source"].startswith("%%exercice"))

        # Un curseur bouge au clavier : le chronogramme et sa phrase changent, alternative comprise.
        lesson.show_cell("slot_player(")
        output = page.locator(".jp-OutputArea-output:has(.noUi-handle)").first
        assert "après 1 pas" not in output.locator("img").get_attribute("alt").lower()
        lesson.capture("lecteur-avant")
        output.locator(".noUi-handle").focus()
        page.keyboard.press("ArrowRight")
        output.locator("img[alt*='après 1 pas' i]").wait_for(timeout=15_000)
        assert "Après 1 pas" in output.inner_text()
        lesson.capture("lecteur-apres")

        wrong = lesson.answer(WRONG)
        assert "✗" in wrong
        assert "attendu" in wrong.lower()
        lesson.show_cell("%%exercice")
        lesson.capture("exercice-faux")
        solution = (ROOT / "solutions" / "ex01_batching.py").read_text(encoding="utf-8")
        right = lesson.answer("%%exercice ex01\n" + solution)
        assert "✗" not in right
        assert "✓" in right
        lesson.capture("exercice-juste")
        browser.close()
