"""A report is one page with everything in it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import archlearn_cli as cli
from archlearn import InputError
from tests.reporting.run_folders import LENET, write_run

VOID = {"meta", "wbr", "br"}


class Outline(HTMLParser):
    """The identifiers and the text of a page, and whether its elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [found[key] or "" for key in ("href", "src") if key in found]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] != ["style"] else ""


def read(path: Path) -> Outline:
    outline = Outline()
    outline.feed(path.read_text("utf-8"))
    outline.text = " ".join(outline.text.split()).replace(" ,", ",")
    assert outline.open == []
    assert len(set(outline.ids)) == len(outline.ids)
    return outline


def report(folder: Path) -> Outline:
    return read(cli.reporting.write_report(folder, folder.parent / "pages" / "report.html"))


def test_a_finished_run_has_every_part(tmp_path: Path) -> None:
    story = replace(LENET, after={"conv1": 11, "fc1": 29, "fc2": 10}, merged=["conv2"])
    page = report(write_run(tmp_path / "a", story))
    figures = {"architecture", "score", "loss", "widths", "depth", "size", "gap"}
    assert figures | {"gates"} <= set(page.ids)
    for words in (
        "lenet on mnist",
        "20-50-500-10 → 11-29-10",
        "99.32 %",
        "19,115",
        "of 431,080, 22.6× fewer",
        "402,130",
        "50 → merged",
        "were given the same 64 inputs",
        "float32 9.54 × 10⁻⁷ 0.0001 float64 3.3 × 10⁻¹⁵ 1 × 10⁻¹⁰",
        "with mean 0.1307 and std 0.3081",
        "al.load(",
        "safe_open(",
        "weight_decay",
        "2.13.0+cpu",
        "3 min 1 s",
        "archlearn learn --model lenet",
        f"archlearn evaluate {tmp_path / 'a'}",
    ):
        assert words in page.text


def test_a_layer_that_did_not_merge_was_left_out_with_its_branch(tmp_path: Path) -> None:
    story = replace(LENET, after={"conv1": 11, "fc1": 29, "fc2": 10}, merged=[])
    assert "50 → left out" in report(write_run(tmp_path / "a", story)).text


def test_a_page_asks_nothing_of_the_network_and_runs_nothing(tmp_path: Path) -> None:
    page = report(write_run(tmp_path / "a"))
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)


def test_an_unfinished_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    page = report(write_run(tmp_path / "a", finished=False))
    assert "This run is unfinished: the page shows where it stood after epoch 6." in page.text
    assert f"archlearn learn --resume {tmp_path / 'a'}" in page.text
    assert "There is no certificate" in page.text
    assert "There is no compact model in the folder yet" in page.text
    assert {"architecture", "score", "gates"} <= set(page.ids)


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.toml").write_text('model = "lenet"\ndata = "mnist"\n')
    page = report(folder)
    assert "No measurement has been written yet" in page.text
    assert "unchanged" not in page.text
    assert "svg" not in page.tags
    assert "Over the epochs" not in page.text


def test_a_run_of_one_epoch_has_a_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", replace(LENET, epochs=2), finished=False)
    for name in ("metrics.jsonl", "gates.jsonl"):
        first = (folder / name).read_text().splitlines()[0]
        (folder / name).write_text(first + "\n")
    page = report(folder)
    assert {"score", "gap", "gates"} <= set(page.ids)


def test_a_run_that_learns_nothing_has_a_page(tmp_path: Path) -> None:
    costs = LENET.costs[0]
    folder = write_run(tmp_path / "a", replace(LENET, after=LENET.before, costs=(costs, costs)))
    (folder / "gates.jsonl").write_text('{"epoch": 0, "width": {}, "depth": {}}\n')
    page = report(folder)
    assert "unchanged" in page.text
    assert "gates" not in page.ids


def test_the_page_of_a_baseline_says_that_it_is_one(tmp_path: Path) -> None:
    costs = LENET.costs[0]
    folder = write_run(tmp_path / "a", replace(LENET, after=LENET.before, costs=(costs, costs)))
    config = (folder / "config.toml").read_text().replace('learn = "all"', 'learn = "nothing"')
    (folder / "config.toml").write_text(config)
    summary = json.loads((folder / "summary.json").read_text())
    for when in ("before", "after"):
        summary[when] |= {"architecture": "", "widths": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    page = report(folder)
    assert "Trained as it is: no architecture is learnt." in page.text
    assert "No measurement" not in page.text
    assert {"score", "loss"} <= set(page.ids)
    assert not {"depth", "gap", "size"} & set(page.ids)


def test_perfect_and_hopeless_accuracies_can_be_drawn(tmp_path: Path) -> None:
    for score in (1.0, 0.0):
        folder = write_run(tmp_path / str(score), replace(LENET, score=score))
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        changed = [re.sub(r'(_accuracy": )[\d.e-]+', rf"\g<1>{score}", line) for line in lines]
        (folder / "metrics.jsonl").write_text("\n".join(changed))
        assert "score" in report(folder).ids


def test_a_network_of_many_layers_is_shown_as_a_map(tmp_path: Path) -> None:
    before = {f"features.{n}.conv": 32 for n in range(40)} | {"out": 10}
    after = {name: width // 2 for name, width in before.items()} | {"out": 10}
    page = report(write_run(tmp_path / "a", replace(LENET, before=before, after=after)))
    assert "1,290 channels in 41 layers → 650 channels in 41 layers" in page.text
    assert "image" in page.tags


def test_a_network_that_is_no_chain_is_summed_up(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    summary = json.loads((folder / "summary.json").read_text())
    summary["after"]["architecture"] = "conv1  11 of 20\nconv2  25 of 50"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "→ 75 channels in 4 layers" in report(folder).text


def test_regression_speaks_of_errors(tmp_path: Path) -> None:
    story = replace(LENET, data="diabetes", task="regression", score=2874.3)
    page = report(write_run(tmp_path / "a", story))
    assert "Squared error 2,874" in page.text
    assert "outputs are to be multiplied by 77.1, and 152.5 to be added" in page.text
    assert "Accuracy" not in page.text


def test_a_run_with_a_budget_has_no_penalty_and_tells_of_its_cuts(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    before = report(folder).text
    assert "Loss. The penalty comes on top in training." in before
    assert "What was dropped and merged: the plan" in before
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "penalty": 0.0}) + "\n" for row in rows]
    (folder / "metrics.jsonl").write_text("".join(lines))
    summary = json.loads((folder / "summary.json").read_text())
    summary["shrinking"] = {"epochs": [2, 3], "multiply_adds": 0.7, "memory_bytes": [2e6, 3e5]}
    (folder / "summary.json").write_text(json.dumps(summary))
    page = report(folder)
    assert "Loss. Of the task alone." in page.text
    assert "What was dropped and merged behind the last cut in training: the plan" in page.text
    assert "Memory in training 2 MB, at the end 300 kB" in page.text


def test_what_a_run_is_called_cannot_become_markup(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>&$x"
    story = replace(
        LENET,
        name=hostile,
        data=hostile,
        before={hostile: 20, "out": 10},
        after={hostile: 5, "out": 10},
    )
    folder = write_run(tmp_path / "a", story)
    page = report(folder)
    assert "script" not in page.tags
    assert hostile in page.text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", {"epoch": "three"}),
        ("metrics.jsonl", {"train_loss": 1.0}),
        ("metrics.jsonl", {"epoch": 1, "train_loss": "low"}),
        ("metrics.jsonl", {"epoch": 1, "widths": [8, 8]}),
        ("gates.jsonl", {"epoch": 1}),
        ("summary.json", {"before": 3}),
        ("summary.json", {"test_accuracy": "high"}),
        ("speed.json", {"rows": [{}]}),
    ],
)
def test_files_that_hold_what_no_run_writes_are_refused(
    tmp_path: Path, name: str, line: dict[str, object]
) -> None:
    folder = write_run(tmp_path / "a")
    with (folder / name).open("a" if name == "metrics.jsonl" else "w") as file:
        file.write(f"{json.dumps(line)}\n")
    with pytest.raises(
        InputError, match=r"cannot report on .*a: metrics.jsonl, .* what no run wri"
    ):
        cli.reporting.write_report(folder, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_folder_is_refused_as_the_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="that is a folder"):
        cli.reporting.write_report(write_run(tmp_path / "a"), tmp_path)


def test_the_page_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "pages" / "report.html"
    out.parent.mkdir()
    out.write_text("old")
    assert cli.reporting.write_report(write_run(tmp_path / "a"), out) == out
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    assert "lenet on mnist" in out.read_text("utf-8")
