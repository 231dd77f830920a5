"""``report``: what the page says of runs, that data in it stays data, and how a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_plot import make_run

from rl_training.cli import main
from rl_training.runtime.svg import Line, bar_chart, line_chart, ticks

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = ("meta",)


class Page(HTMLParser):
    """A page whose tags must be balanced: its tags, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text("utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def log_of(points: int) -> list[dict[str, Any]]:
    train = [
        {"kind": "train", "step": 100 * k, "return_mean": k / 2, "loss": 1 / k, "epsilon": 0.1, "time/cpu_seconds": k}
        for k in range(1, points)
    ]  # fmt: skip
    return [*train, *({"kind": "eval", "step": 1000 * k, "return_mean": 3.0 * k} for k in range(1, 6))]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = make_run(tmp_path / "run", log_of(60), total_timesteps=9000)
    (path / "evaluation.json").write_text(json.dumps({"returns": [10.0, 14.0, 12.0, 12.0], "lengths": [1, 2, 3, 4]}))
    (path / "metadata.json").write_text(json.dumps({"command": "rl-training train --config x", "versions": {"torch": "2"}}))
    (path / "fault-step-700.json").write_text(json.dumps({"problem": "ValueError: <script>alert(1)</script>"}))
    (path / "tensorboard").mkdir()
    for step in (0, 1200):
        (path / "tensorboard" / f"events.out.tfevents.17{step}.step{step}").touch()
    return path


def written(tmp_path: Path, *paths: Path) -> Page:
    output = tmp_path / "report.html"
    assert main(["report", *map(str, paths), "--output", str(output)]) == 0
    return Page(output)


def test_one_run(run: Path, tmp_path: Path) -> None:
    page = written(tmp_path, run)
    for words in (
        "dqn on CartPole-v1, seed 1",
        "final return12 ± 1.6 (95 %), 4 episodes",
        "best evaluation15",
        "5,900 of 9,000",
        "rl-training train --config x",
        f"--config {run}/config.yaml",
        "resumed at step 1,200",
        "fault at step 700: ValueError: <script>alert(1)</script>",
        "CPU time59.0 s",
        "batch_size64",
    ):
        assert words in page.text.replace("\n", " "), words
    assert page.count("svg") == 1 + 2 + 2, "returns; two distributions; loss and epsilon"
    assert page.count("details") == page.count("svg"), "each has its table"
    assert (tmp_path / "report.html").stat().st_size < 500_000
    changed = re.findall(r'<tr class="changed"><th scope="row">([\w.]+)</th>', (tmp_path / "report.html").read_text())
    assert "total_timesteps" in changed
    assert "algo_kwargs.gamma" not in changed


def test_nothing_is_asked_of_anybody(run: Path, tmp_path: Path) -> None:
    page = written(tmp_path, run)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "base", "form"}
    assert not [
        name for _, attributes in page.tags for name in attributes if name in ("src", "href") or name.startswith("on")
    ]
    assert "url(" not in (tmp_path / "report.html").read_text()


def test_a_long_run_is_still_a_small_page(tmp_path: Path) -> None:
    written(tmp_path, make_run(tmp_path / "run", log_of(20_000)))
    assert (tmp_path / "report.html").stat().st_size < 500_000


def test_several_runs(tmp_path: Path) -> None:
    for seed in (1, 2):
        for size in (8, 16):
            path = make_run(tmp_path / "runs" / f"{size}-{seed}", log_of(20), seed=seed, algo_kwargs={"batch_size": size})
            (path / "evaluation.json").write_text(json.dumps({"returns": [float(size + seed)]}))
    page = written(tmp_path, tmp_path / "runs")
    assert "batch_size=8" in page.text
    assert "batch_size=16217.50.707118" in page.text, "label, seeds, mean, deviation, best"
    assert page.count("polygon") == 2, "a band for each"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a run directory"),
        (["fresh"], "fresh has logged nothing yet"),
        (["good", "--output", "report.txt"], "must end in .html"),
        (["good", "--output", "nowhere/report.html"], "cannot write the report nowhere/report.html"),
    ],
)
def test_what_cannot_be_reported(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("good"))
    make_run(Path("fresh"), [{"kind": "train", "step": 0}])
    assert main(["report", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_run_is_reported_as_far_as_it_goes(run: Path, tmp_path: Path) -> None:
    for name in ("evaluation.json", "metadata.json", "fault-step-700.json"):
        (run / name).write_text('{"returns": ["x", null, 1e999], "command": 5, "versions": [], ')
    assert "final return" not in written(tmp_path, run).text
    (run / "evaluation.json").write_text('{"returns": ["x", null, true, 1e999], "lengths": 3}')
    assert "final return" not in written(tmp_path, run).text


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0.0, 100.0) == [0, 20, 40, 60, 80, 100]
    assert ticks(-0.3, 0.7) == pytest.approx([-0.2, 0.0, 0.2, 0.4, 0.6])
    assert ticks(24.0, 510.0) == [100, 200, 300, 400, 500]
    assert ticks(1e6, 1e6 + 10) == pytest.approx([1e6, 1e6 + 2, 1e6 + 4, 1e6 + 6, 1e6 + 8, 1e6 + 10])


def test_points_are_where_their_numbers_are() -> None:
    drawn = line_chart("x", [Line("a", [0, 50, 100], [0.0, 10.0, 20.0])])
    places = [(float(x), float(y)) for x, y in re.findall(r'<circle [^>]*cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    (x0, y0), (x1, y1), (x2, y2) = places
    assert (x0, y0) == (76, 212), "the corner of the axes"
    assert (2 * x1, 2 * y1) == pytest.approx((x0 + x2, y0 + y2), abs=0.2)
    assert y2 < y1 < y0
    line_chart("flat", [Line("a", [0], [0.0])])
    heights = [float(height) for height in re.findall(r'height="([\d.]+)"', bar_chart("x", [1.0, 1.0, 2.0], "returns"))]
    assert sum(height > 0 for height in heights) == 2
    assert max(heights) == pytest.approx(2 * sorted(heights)[-2])


def in_chromium(page: Path, folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What Chromium prints of a page, and the addresses that the page asks for; those of the browser itself do not count."""
    assert CHROMIUM is not None
    log = folder / "net.json"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--log-net-log={log}", "--enable-logging=stderr", *options, page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert shown.returncode == 0, shown.stderr
    requests = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    asked = [request["url"] for request in requests if request.get("initiator", "not an origin") != "not an origin"]
    return shown, [url for url in asked if not url.startswith("file:")]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_in_a_browser(run: Path, tmp_path: Path) -> None:
    written(tmp_path, run)
    page = tmp_path / "report.html"
    shown, asked = in_chromium(page, tmp_path, "--dump-dom")
    assert shown.stdout.count("<svg") == 5
    assert "CONSOLE" not in shown.stderr, "an error of the page"
    assert asked == []
    for width in (1280, 390):
        picture = tmp_path / f"{width}.png"
        in_chromium(page, tmp_path, f"--screenshot={picture}", f"--window-size={width},1400")
        assert picture.stat().st_size > 20_000
    other = tmp_path / "other.html"
    other.write_text("<img src='http://localhost:9/x.png'><script>console.log(1)</script>")
    shown, asked = in_chromium(other, tmp_path, "--dump-dom")
    assert (asked[:1], "CONSOLE" in shown.stderr) == (["http://localhost:9/x.png"], True), "they would have been noticed"
