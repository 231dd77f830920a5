"""``report``: what the page says of runs, that data in it stays data, and how a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_plot import make_run

from rl_training.cli import main
from rl_training.experiment import aggregate
from rl_training.runtime.page import SCRIPT
from rl_training.runtime.svg import Bar, Line, bar_chart, histogram, line_chart, standalone, ticks

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
        {"kind": "train", "step": 100 * k, "return_mean": k / 2, "loss": 1 / k, "epsilon": 0.1, "time/cpu_seconds": k,
         "time/seconds": 2 * k, "time/update_seconds": 1.5 * k, "time/environment_seconds": 0.5 * k, "priority_mean": 0.5}
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
        (path / "tensorboard" / f"events.out.tfevents.17{step}.some-host.77.0.step{step}").touch()
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
    assert page.count("svg") == 1 + 2 + 3 + 1, "returns; two distributions; loss, epsilon and priorities; phases"
    headings = re.findall(r"<h2>([^<]+)</h2>", (tmp_path / "report.html").read_text())
    assert headings[3:7] == ["Losses", "Exploration and policy", "Replay", "Where the time went"]
    phases = page.text.partition("Where the time went")[2]
    assert "environment29.5 supdate1 min 28 sin all1 min 58 sCPU time59.0 s" in phases
    assert page.count("details") == page.count("svg"), "each has its table"
    assert (tmp_path / "report.html").stat().st_size < 500_000
    changed = re.findall(r'<tr class="changed"><th scope="row">([\w.]+)</th>', (tmp_path / "report.html").read_text())
    assert "total_timesteps" in changed
    assert "algo_kwargs.gamma" not in changed


def test_nothing_is_asked_of_anybody(run: Path, tmp_path: Path) -> None:
    page = written(tmp_path, run)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"img", "link", "iframe", "object", "base", "form"}
    assert page.count("script") == 1
    (policy,) = (value["content"] for tag, value in page.tags if tag == "meta" and "http-equiv" in value)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    assert not [
        name for _, attributes in page.tags for name in attributes if name in ("src", "href") or name.startswith("on")
    ]
    assert "url(" not in (tmp_path / "report.html").read_text()


def test_a_long_run_is_still_a_small_page(tmp_path: Path) -> None:
    written(tmp_path, make_run(tmp_path / "run", log_of(20_000)))
    assert (tmp_path / "report.html").stat().st_size < 500_000


def several(tmp_path: Path, seeds: int = 3, env_id: str = "CartPole-v1") -> Path:
    """Two groups of runs; the second reaches half as much."""
    for seed in range(seeds):
        for size, factor in ((8, 2.0), (16, 1.0)):
            log = [{"kind": "eval", "step": 100 * k, "return_mean": factor * k + seed} for k in range(1, 11)]
            name = f"{env_id}-{size}-{seed}"
            path = make_run(tmp_path / "runs" / name, log, seed=seed, env_id=env_id, algo_kwargs={"batch_size": size})
            (path / "evaluation.json").write_text(json.dumps({"returns": [10 * factor + seed, 10 * factor + seed]}))
    return tmp_path / "runs"


@pytest.fixture
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "RESAMPLES", 50)


@pytest.mark.usefixtures("_few_resamples")
def test_several_runs(tmp_path: Path) -> None:
    page = written(tmp_path, several(tmp_path))
    for words in (
        "batch_size=8 (3)",
        "batch_size=8321 [",  # label, seeds, interquartile mean of 20, 21 and 22, its interval
        "batch_size=16311 [",
        "batch_size=16batch_size=80.00 [0.00, 0.00]",  # no run of the first ends above one of the second
        "batch_size=8600 (3 of 3)",  # the curves go from 2 to 21; half-way is 11.5, which 2 k + seed reaches at 6, 6 and 5
        "return 11.5return 16.25",
        "batch_size=161,000 (1 of 3)- (0 of 3)",  # k + seed reaches it at 10 if the seed is 2
        "algo_kwargs.batch_size168",
    ):
        assert words in page.text, words
    assert page.count("polygon") == 2 + 2, "a band for each, on the curves and on the profile"
    assert page.text.count("at least this return") == 1


@pytest.mark.usefixtures("_few_resamples")
def test_tasks_are_compared_apart(tmp_path: Path) -> None:
    several(tmp_path, env_id="Acrobot-v1")
    page = written(tmp_path, several(tmp_path))
    for title in (
        "Learning curves",
        "Final returns",
        "Sample efficiency",
        "Probability of improvement",
        "Performance profile",
    ):
        assert all(f"{title} on {task}" in page.text for task in ("CartPole-v1", "Acrobot-v1"))


def test_without_rliable_there_are_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.comparison.has_rliable", lambda: False)
    page = written(tmp_path, several(tmp_path))
    assert "with pip install 'rl-training[bench]', interquartile means" in page.text
    assert "batch_size=832121" in page.text, "label, seeds, mean, median"
    assert "Probability" not in page.text


def test_a_finished_run_shows_its_last_step_even_if_it_logged_nothing_there(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{"kind": "change", "step": 100, "log.interval": 1000}], total_timesteps=400)
    (run / "checkpoints" / "step-0000000400").mkdir()
    (run / "episodes.jsonl").write_text(json.dumps({"kind": "episode", "step": 390, "return": 5.0, "length": 9}) + "\n")
    page = written(tmp_path, run)
    assert "steps400" in page.text
    assert "3905" in page.text, "the table behind the learning curve"


def test_the_config_of_a_run_that_was_changed_on_the_way_does_not_repeat_it(run: Path, tmp_path: Path) -> None:
    def told(**settings: Any) -> str:
        change = {"step": 500, "command": "rl-training resume run --set x", "settings": settings}
        about = {"command": "rl-training train --algo dqn", "changes": [change, "damaged"]}
        (run / "metadata.json").write_text(json.dumps(about))
        return written(tmp_path, run).text

    assert "To repeat it exactly" in told(total_timesteps={"from": 500, "to": 9000})
    text = told(**{"algo_kwargs.learning_rate": {"from": 1e-3, "to": 1e-4}})
    assert "To repeat it exactly" not in text
    assert "Settings were changed at step 500 with" in text
    assert "rl-training resume run --set x" in text


@pytest.mark.usefixtures("_few_resamples")
def test_a_run_without_returns_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = several(tmp_path, seeds=1)
    make_run(runs / "fresh", [{"kind": "train", "step": 0}])
    page = written(tmp_path, runs)
    assert "fresh" not in page.text
    said = capsys.readouterr()
    assert "fresh has logged no returns yet; it is left out of the report" in said.err
    assert "2 runs written to" in said.out


def test_a_video_is_inside_the_page(tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    few = ("algo_kwargs.learning_starts=20", "log.interval=20", "eval.final_episodes=1")
    command = ["train", "--algo", "dqn", "--env", "CartPole-v1", "--total-timesteps", "60", "--quiet"]
    main([*command, "--output-dir", str(trained), *(word for one in few for word in ("--set", one))])
    output = tmp_path / "report.html"
    assert main(["report", str(trained), "--video", "--output", str(output)]) == 0
    (source,) = re.findall(r'<img alt="[^"]+" src="data:image/gif;base64,([^"]+)">', output.read_text())
    assert base64.b64decode(source).startswith(b"GIF89a")
    assert main(["report", str(trained), "--output", str(output)]) == 0
    assert "<img" not in output.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a run directory"),
        (["fresh"], "fresh has logged nothing yet"),
        (["empty"], "none of these 2 runs has logged any returns yet"),
        (["good", "other", "--video"], "--video is for the report of one run, and these are 2"),
        (["good", "--output", "report.txt"], "must end in .html"),
        (["good", "--output", "nowhere/x.html"], "cannot write the report nowhere/x.html: No such file or directory\n"),
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
    make_run(Path("other"), seed=2)
    for name in ("fresh", "empty/a", "empty/b"):
        make_run(Path(name), [{"kind": "train", "step": 0}])
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
    heights = [float(height) for height in re.findall(r'height="([\d.]+)"', histogram("x", [1.0, 1.0, 2.0], "returns"))]
    assert sum(height > 0 for height in heights) == 2
    assert max(heights) == pytest.approx(2 * sorted(heights)[-2])


def test_the_last_number_of_an_axis_is_not_cut_off() -> None:
    drawn = histogram("x", [250.0, 500.0], "returns")
    places = re.findall(r'<text x="([\d.]+)" y="232" text-anchor="(\w+)">(\d+)</text>', drawn)
    assert places[-1] == ("640", "end", "500")
    assert {anchor for _, anchor, _ in places[:-1]} == {"middle"}


def test_bars_are_as_long_as_their_numbers() -> None:
    drawn = bar_chart("x", [Bar("a", 0.5, 0.25, 0.75), Bar("b <i>", 1.0)])
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn)]
    assert widths[1] == pytest.approx(2 * widths[0])
    assert "b &lt;i&gt;" in drawn
    (low, high) = (float(x) for x in re.findall(r'<line class="whisker" x1="([\d.]+)" x2="([\d.]+)"', drawn)[0])
    assert high - low == pytest.approx(widths[0])


def test_a_standalone_drawing_is_well_formed() -> None:
    lines = [Line("a & b", [0, 1], [0.0, 1.0], [0.0, 0.5], [0.5, 2.0], dashed=True)]
    tree = ElementTree.fromstring(standalone("x", [("one", lines), ("two", lines), ("three", lines)]))
    assert len(tree.findall(".//{*}polyline")) == len(tree.findall(".//{*}polygon")) == 3


def in_chromium(page: Path, folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What Chromium prints of a page, and the addresses that the page asks for; those of the browser itself do not count."""
    assert CHROMIUM is not None
    log = folder / "net.json"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command += ["--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}"]
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
    assert shown.stdout.count("<svg") == 7
    assert "CONSOLE" not in shown.stderr, "an error of the page"
    assert asked == []
    touched = tmp_path / "touched.html"
    touch = "const s = document.querySelector('svg'); s.dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}));"
    text = re.sub(r"script-src 'sha256-[^']+'", "script-src 'unsafe-inline'", page.read_text())
    touched.write_text(text.replace("</body>", f"<script>{touch}</script></body>"))
    shown, _ = in_chromium(touched, tmp_path, "--dump-dom")
    assert "5,900 environment steps: evaluation 15, training 29.5</output>" in shown.stdout, "read off with the keyboard"
    for width in (1280, 390):
        picture = tmp_path / f"{width}.png"
        in_chromium(page, tmp_path, f"--screenshot={picture}", f"--window-size={width},1400")
        assert picture.stat().st_size > 20_000
    other = tmp_path / "other.html"
    other.write_text("<img src='http://localhost:9/x.png'><script>console.log(1)</script>")
    shown, asked = in_chromium(other, tmp_path, "--dump-dom")
    assert (asked[:1], "CONSOLE" in shown.stderr) == (["http://localhost:9/x.png"], True), "they would have been noticed"
