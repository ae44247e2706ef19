"""report.html as a browser shows it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from end_to_end.terminal import TINY, hyrt, only_run, records, summary
from in_process import refused, run_here

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

# Run in a copy of the page: what only a browser knows. Where the pointer or the focus was, charts live.
PROBE = """<script>addEventListener("load", () => {
  const seen = {
    across: document.documentElement.scrollWidth, window: innerWidth,
    charts: [...document.querySelectorAll("svg.chart")].map(each => {
      const box = each.getBoundingClientRect();
      return [box.width, box.height, each.querySelectorAll("path.line").length]; }),
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    shown: [...document.querySelectorAll("details")].forEach(each => each.open = true),
    focusable: [...document.querySelectorAll("a[href], summary, [tabindex]")].filter(each => {
      each.focus(); return document.activeElement === each; }).length,
    reachable: document.querySelectorAll("a[href], summary, [tabindex]").length,
    broken: [...document.querySelectorAll("nav a")].filter(
      each => !document.querySelector(each.getAttribute("href"))).length,
  };
  const figure = document.querySelector("figure");
  figure.focus();
  setTimeout(() => {
    const press = key => figure.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    press("ArrowRight"); press("ArrowRight");
    setTimeout(() => {
      seen.live = document.querySelectorAll(".live canvas").length;
      seen.values = [...figure.querySelectorAll(".u-value")].map(each => each.textContent);
      seen.pictures = [...document.querySelectorAll("svg.chart")].filter(each => each.clientWidth).length;
      document.body.dataset.seen = JSON.stringify(seen);
    }, 100);
  }, 100);
});</script>"""


class Cells(HTMLParser):
    """The rows of all tables, as texts."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self._inside = tag in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data.strip()


def rows(page: str) -> list[list[str]]:
    cells = Cells()
    cells.feed(page)
    return cells.rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    shown = hyrt("run", *TINY, "--devices", "cpu:0,cpu:1", cwd=folder).stdout
    made = only_run(folder)
    assert f"report runs/{made.name}/report.html" in shown
    return made


def browse(page: Path, scratch: Path, *options: str) -> tuple[str, str]:
    """The page's document as Chromium built it, and what it said on its console."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(
                "--enable-logging=stderr",
                "--virtual-time-budget=3000",
                f"--user-data-dir={scratch / 'profile'}",
            ),
            *(*options, "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def test_the_page_is_alone_and_says_what_the_summary_says(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    without = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:,)", without), "it fetches nothing"
    assert re.findall(r"<script[^>]*>", page).count("<script>") == 1
    assert not re.search(r"<script[^>]*src|import\(|fetch\(|XMLHttp|@import|url\(", page)
    assert len(page) < 400_000
    found = {row[0]: row[1] for row in rows(page) if len(row) == 2}
    said = summary(run)
    assert found["status"] == said["status"]
    for split in ("val", "test"):
        for metric, value in said["metrics"][split].items():
            assert float(found[f"{split} {metric}"]) == pytest.approx(value, abs=5e-5)
    assert int(found["steps"]) == said["steps"]
    assert found["last split"] == ", ".join(f"{name} {units}" for name, units in said["split"].items())
    number, unit = found["peak memory"].split()
    assert float(number) * {"MiB": 2**20, "GiB": 2**30}[unit] == pytest.approx(
        said["peak_memory_bytes"], rel=0.006
    )
    steps = [record for record in records(run) if record["event"] == "steps"]
    # The resource manager may give a trainer nothing.
    assert steps
    for record in steps:
        assert set(record["busy_s"]) == {"cpu:0", "cpu:1"}
        assert all(record["busy_s"][name] > 0 for name, units in record["split"].items() if units)
    glance = [row[0].removesuffix(" ◀") for row in rows(page) if len(row) == 6]
    assert glance[:6] == ["stage", "sample", "load", "transfer", "propagate", "synchronize"]


# A window of Chromium is at least 500 pixels wide, a frame in it is as wide as told.
PHONE = """<body><iframe id="phone" style="width:390px;height:8000px;border:0"></iframe>
<script>addEventListener("load", () => {
  const frame = document.getElementById("phone");
  frame.onload = () => {
    const page = frame.contentDocument;
    const seen = {broken: [], across: page.documentElement.scrollWidth, words: 0};
    for (const cell of page.querySelectorAll("#decisions td, #environment td, #environment th")) {
      const walker = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
      for (let text; (text = walker.nextNode());) {
        for (const word of text.data.matchAll(/[^\\s\\/-]+/g)) {
          const range = page.createRange();
          range.setStart(text, word.index); range.setEnd(text, word.index + word[0].length);
          const lines = new Set([...range.getClientRects()].map(each => each.top));
          seen.words += 1;
          if (lines.size > 1) seen.broken.push(word[0]);
        }
      }
    }
    document.body.dataset.seen = JSON.stringify(seen);
  };
  frame.srcdoc = PAGE;
});</script></body>"""


@needs_browser
def test_a_phone_breaks_no_words_of_decisions_and_environment(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    moved = {
        "event": "balanced", "time_s": 99.0, "step": 2, "acts_from": 5, "policy": "bottleneck",
        "split": {"cpu:0": 512, "cpu:1": 512}, "threads": {"sample": 1, "load": 2, "propagate": 2},
        "reason": "moved sample from 1 to 2 threads: sample 38.3 ms (T_SC is the bottleneck)",
    }  # fmt: skip
    with (copy / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(moved) + "\n")
    environment = json.loads((copy / "env.json").read_text(encoding="utf-8"))
    environment |= {"command": ["hyrt", "run", "balance.policy=bottleneck"]}
    environment["variables"] = {"OMP_WAIT_POLICY_BYTES": "PASSIVE"}
    (copy / "env.json").write_text(json.dumps(environment), encoding="utf-8")
    hyrt("report", copy, cwd=tmp_path)
    text = (copy / "report.html").read_text(encoding="utf-8")
    assert '<th scope="row">variables.OMP_WAIT_POLICY_BYTES</th>' in text
    page = tmp_path / "phone.html"
    page.write_text(PHONE.replace("PAGE", json.dumps(text).replace("</", "<\\/")), encoding="utf-8")
    shown, _ = browse(page, tmp_path, "--window-size=600,900")
    seen = json.loads(re.search(r'data-seen="([^"]*)"', shown)[1].replace("&quot;", '"'))  # type: ignore[index]
    assert seen["words"] > 50
    assert seen["broken"] == []
    assert seen["across"] <= 390


@needs_browser
@pytest.mark.parametrize(
    "options", [["--window-size=1200,900"], ["--window-size=500,900", "--force-dark-mode"]]
)
def test_a_browser_shows_it(run: Path, tmp_path: Path, options: list[str]) -> None:
    page = tmp_path / "probed.html"
    text = (run / "report.html").read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    shown, console = browse(page, tmp_path, *options)
    assert not console
    seen = json.loads(
        re.search(r'data-seen="([^"]*)"', shown)[1].replace("&quot;", '"')  # type: ignore[index]
    )
    assert seen["across"] <= seen["window"], "no scrolling sideways"
    assert len(seen["charts"]) >= 9
    assert all(width > 200 and height > 80 and lines >= 1 for width, height, lines in seen["charts"])
    assert seen["focusable"] == seen["reachable"] > 10
    assert seen["live"] == len(seen["charts"])
    assert seen["pictures"] == 0
    # The second step, whose loss the run has told.
    losses = [loss for record in records(run) if record["event"] == "steps" for loss in record["losses"]]
    step, loss = seen["values"][:2]
    assert step == "2"
    assert float(loss) == pytest.approx(losses[1], rel=1e-3)
    assert seen["broken"] == 0
    dark = "--force-dark-mode" in options
    paper, ink = (sum(map(int, re.findall(r"\d+", seen[part])[:3])) for part in ("paper", "ink"))
    assert (paper < ink) == dark


def test_it_is_made_again_and_compares(run: Path, tmp_path: Path) -> None:
    page = run / "report.html"
    before = page.read_text(encoding="utf-8")
    page.unlink()
    hyrt("report", run, cwd=tmp_path)
    assert page.read_text(encoding="utf-8") == before
    hyrt("run", *TINY, "train.lr=0.02", "--name", "other", cwd=tmp_path)
    shown = hyrt("report", run, "runs/other", "runs/other/.", cwd=tmp_path).stdout
    assert shown == "report report.html\n"
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "2 runs compared" in text
    found = {row[0]: row[1:] for row in rows(text) if len(row) == 3}
    assert found["result"] == [run.name, "other"]
    said = [summary(run), summary(tmp_path / "runs" / "other")]
    assert [float(cell) for cell in found["test accuracy"]] == pytest.approx(
        [each["metrics"]["test"]["accuracy"] for each in said], abs=5e-5
    )
    assert found["train.lr"][1] == "0.02"
    assert "train.epochs" not in found, "only settings that differ"


def test_a_folder_that_is_no_text_can_be_pasted(tmp_path: Path) -> None:
    name = os.fsdecode(b"it's b\xffd")
    shown = hyrt("run", *TINY, "train.epochs=1", "--quiet", "--output", name, "--name", "run", cwd=tmp_path)
    (folder,) = re.findall(r"^run folder (.*) · report (?:.*)$", shown.stdout, re.MULTILINE)
    paste = f"cd {folder} && pwd"
    done = subprocess.run(["bash", "-c", paste], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.rstrip(b"\n") == os.fsencode(tmp_path / name / "run")


def test_what_was_learned_is_plotted(run: Path, tmp_path: Path) -> None:
    run_here("plot", run, "-o", "classes.svg", "--confusion", cwd=tmp_path)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "classes.svg").read_text())
    (found,) = [
        re.fullmatch(r"test: ([\d,]+) of ([\d,]+) correct", text) for text in texts if "correct" in text
    ]
    assert found is not None
    right, of = (int(each.replace(",", "")) for each in found.groups())
    assert right / of == pytest.approx(summary(run)["metrics"]["test"]["accuracy"], abs=1e-9)
    run_here("plot", run, "-o", "rows.svg", "--embeddings", cwd=tmp_path)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "rows.svg").read_text())
    assert {f"class {number}" for number in range(4)} <= set(texts)
    run_here("plot", run, "-o", "curves.svg", "--roc", cwd=tmp_path)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "curves.svg").read_text())
    areas = [float(found[1]) for text in texts if (found := re.fullmatch(r"class \d, area ([\d.]+)", text))]
    assert len(areas) == 4
    [mean] = [float(found[1]) for text in texts if (found := re.match(r"test: mean area ([\d.]+)", text))]
    assert mean == pytest.approx(sum(areas) / 4, abs=0.001)
    # The page of the run has the same numbers as the plot.
    counts = [row for row in rows((run / "report.html").read_text()) if len(row) == 6 and "%" in row[-1]]
    diagonal = [int(row[1 + each].replace(",", "")) for each, row in enumerate(counts)]
    assert (len(counts), sum(diagonal)) == (4, right)
    if find_spec("umap") is None:
        told = refused("plot", run, "-o", "x.svg", "--embeddings", "--method", "umap", cwd=tmp_path)
        assert 'pip install "hyrt[umap]"' in told
    assert "add --embeddings" in refused("plot", run, "-o", "x.svg", "--method", "pca", cwd=tmp_path)
    told = refused("plot", run, "-o", "x.svg", "--embeddings", "--confusion", cwd=tmp_path)
    assert "--embeddings cannot be combined with --confusion" in told
    assert "--confusion plots a single run" in refused(
        "plot", run, run, "-o", "x.svg", "--confusion", cwd=tmp_path
    )


def test_metrics_as_csv(run: Path, tmp_path: Path) -> None:
    words = ("evaluate.every=2", "train.schedule=StepLR", 'train.schedule_options={"step_size":1}')
    hyrt("run", *TINY, "train.epochs=3", *words, "--name", "other", cwd=tmp_path)
    other = tmp_path / "runs" / "other"
    assert hyrt("report", other, "--csv", cwd=tmp_path).stdout == f"metrics {other / 'metrics.csv'}\n"
    hyrt("report", run, other, "--csv", "-o", "both.csv", cwd=tmp_path)
    with (tmp_path / "both.csv").open(encoding="utf-8", newline="") as file:
        both = list(csv.DictReader(file))
    assert [(row["run"], row["epoch"]) for row in both] == [
        *((run.name, str(epoch)) for epoch in (1, 2)),
        *(("other", str(epoch)) for epoch in (1, 2, 3)),
    ]
    with (other / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{key: value for key, value in row.items() if key in rows[0]} for row in both[2:]]
    ended = [record for record in records(other) if record["event"] == "epoch_ended"]
    evaluated = {record["epoch"]: record for record in records(other) if record["event"] == "evaluated"}
    for row, line in zip(rows, ended, strict=True):
        for key in ("epoch", "step", "seconds", "loss", "mteps"):
            assert float(row[key]) == line[key]
        said = evaluated.get(line["epoch"])
        assert row["is_best"] == ("" if said is None else str(int(said["is_best"])))
        for split in ("val", "test"):
            known = "" if said is None else str(said["metrics"][split]["accuracy"])
            assert row[f"{split}_accuracy"] == known
    assert len(evaluated) < len(rows), "an epoch without an evaluation leaves its metrics empty"
    first = float(rows[0]["lr"])
    assert [float(row["lr"]) for row in rows] == pytest.approx([first, 0.1 * first, 0.01 * first])


def test_words_that_are_no_runs(run: Path, tmp_path: Path) -> None:
    assert "nowhere does not exist" in hyrt("report", "nowhere", cwd=tmp_path, code=2).stderr
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "summary.json").write_text("{", encoding="utf-8")
    assert "summary.json" in hyrt("report", copy, cwd=tmp_path, code=2).stderr
    assert (
        "no/such does not exist: create"
        in hyrt("report", run, "-o", "no/such/place.html", cwd=tmp_path, code=2).stderr
    )
    # What a program whose --csv takes a file would be given.
    said = hyrt("report", "--csv", "m x.csv", run, cwd=tmp_path, code=2).stderr
    assert said == "error: m x.csv is not a run: to write to this file, use --output 'm x.csv'\n"


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("summary.json", "metrics", 5),
        ("summary.json", "epoch_s", "long"),
        ("metrics.jsonl", "losses", 3),
    ],
)
def test_a_file_that_holds_something_else_is_named(
    run: Path, tmp_path: Path, file: str, key: str, value: object
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    lines = (
        [json.loads(line) for line in (copy / file).read_text().splitlines()] if file.endswith("l") else []
    )
    for line in lines:
        if key in line:
            line[key] = value
    changed = lines or [{**json.loads((copy / file).read_text()), key: value}]
    (copy / file).write_text("".join(f"{json.dumps(line)}\n" for line in changed))
    said = refused("report", copy, "-o", "x.html", cwd=tmp_path)
    assert said.startswith(f"{copy / file} is damaged (")
    assert said.endswith("): restore an intact copy, or move it away")
    assert not (tmp_path / "x.html").exists()


def test_a_run_without_its_checkpoints_has_a_report(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    run_here("report", copy, "-o", "x.html", cwd=tmp_path)
    assert (tmp_path / "x.html").stat().st_size
    assert "checkpoints/ is missing: restore it, or start a new run" in refused("eval", copy, cwd=tmp_path)


@pytest.mark.parametrize(("output", "said"), [("/dev/null", "is a special file"), (".", "is a folder")])
def test_what_is_no_regular_file_stays(run: Path, tmp_path: Path, output: str, said: str) -> None:
    assert said in hyrt("report", run, "--output", output, cwd=tmp_path, code=2).stderr
    assert Path("/dev/null").is_char_device()
    target = tmp_path / "target.html"
    target.touch()
    link = tmp_path / "link.html"
    link.symlink_to(target)
    hyrt("report", run, "--output", link, cwd=tmp_path)
    assert link.is_symlink()
    assert target.stat().st_size


def test_a_run_that_failed_has_one_too(tmp_path: Path) -> None:
    hyrt("run", *TINY, "train.lr=1e30", "train.optimizer=SGD", cwd=tmp_path, code=1)
    made = only_run(tmp_path)
    found = {
        row[0]: row[1] for row in rows((made / "report.html").read_text(encoding="utf-8")) if len(row) == 2
    }
    assert found["status"] == "failed"
    assert found["error"] == summary(made)["error"]


def test_scalars_for_tensorboard_and_a_dashboard_that_is_no_terminal(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    hyrt("run", *TINY, "--loggers", "tensorboard", "--dashboard", cwd=tmp_path)
    made = only_run(tmp_path)
    (events,) = (made / "tensorboard").iterdir()
    assert b"val/accuracy" in events.read_bytes()
    # A resumed run adds to it.
    hyrt("run", "--resume", made, "train.epochs=3", cwd=tmp_path)
    assert len(list((made / "tensorboard").iterdir())) == 2


def test_charts_for_papers(run: Path, tmp_path: Path) -> None:
    run_here("plot", run, "-o", "mine.svg", "--charts", "loss,split,busy", cwd=tmp_path)
    drawn = (tmp_path / "mine.svg").read_text(encoding="utf-8")
    assert all(
        f">{name}</text>" in drawn for name in ("training", "cpu:0", "cpu:1", "Split: targets per step")
    )
    shutil.copytree(run, tmp_path / "other")
    run_here("plot", run, "other", "-o", "two.pdf", cwd=tmp_path)
    assert (tmp_path / "two.pdf").read_bytes().startswith(b"%PDF")
    assert "mine.svg already exists" in refused("plot", run, "-o", "mine.svg", cwd=tmp_path)
    message = refused("plot", run, "-o", "x.svg", "--charts", "lost", cwd=tmp_path)
    assert "is not available for these runs: use loss, metrics, step" in message
