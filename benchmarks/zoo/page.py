"""The page of the zoo, written from its rows alone."""

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch

from benchmarks.circumstances import as_markdown
from benchmarks.zoo.measure import Row

_HOW = """\
Small configurations from the packages' own classes, random weights, none of them neutral (seed 0),
float64. Half of every group of width gates is closed at random (seed 1); the compact model is
compared with the gated one in evaluation mode on new inputs (seed 1). Exact: they differ by at most
1e-10 of the largest output (float32: 1e-3); what a model casts to float32 on the way is in float64
there, too. "left": share of the parameters that is left. Heads, and convolutions of many groups,
have gates for whole heads or groups and for channels within: of both kinds half is closed.
"types": the outputs of gated and compact model have the types of the user's model. "silent": groups
of gates that get a gradient in evaluation mode and none in training mode. Torch-Pruning: share left
at a ratio of one half by its plain call (layers that make the output are left alone), where that
gave a model that runs ("too slow": not done within the limit of time); what that model computes is
not compared. "heads": the same with `num_heads` for the layers that write queries, keys and values,
where they are found by their names."""

_WHY = {
    "timm/vit_tiny_r_s16_p8_224": "`forward` computes the weights of its first convolution, which "
    "keeps its channels",
    "tp-tests/test_split": "Torch-Pruning drops 83 of 128 channels there, and not 64: two parts "
    "that share a layer lose a half each, and not the same one",
    "tp-tests/test_concat": "one of three channels is closed, where Torch-Pruning drops two",
}
_NEAR = 0.002  # shares left that differ by less are the same: groups of odd sizes are rounded

_FAMILIES = {
    "hf": "transformers",
    "full": "transformers in full size, in float32",
    "timm": "timm",
    "tv": "torchvision: segmentation, detection, video, quantised",
    "diffusers": "diffusers",
    "smp": "segmentation-models-pytorch",
    "pyg": "PyTorch Geometric",
    "ultralytics": "ultralytics (YOLO)",
    "rtdl": "tables: RTDL",
    "pytorch-tabnet": "tables: TabNet",
    "own": "sequences: TCN, WaveNet",
    "tp-tests": "the tests of Torch-Pruning",
}
_LEARNT = {"widths": "groups", "depth": "depths", "branches": "branches"}


def table(rows: list[Row], names: list[str]) -> str:
    """Return the rows as Markdown, one line a model."""
    found = {(row["model"], row["side"]): row for row in rows}
    lines = [
        "| model | archlearn | left | Torch-Pruning left | heads | types | silent | said |",
        "|---|---|--:|--:|--:|---|--:|---|",
    ]
    for name in names:
        we = found.get((name, "archlearn"), {"result": "not measured"})
        they, heads = (found.get((name, s), {}) for s in ("torch-pruning", "torch-pruning heads"))
        kept = {True: "kept", False: "LOST", None: ""}[we.get("types_kept")]
        said = we.get("said", "").replace("|", "\\|")[:160]
        cells = [
            name,
            we["result"],
            _share(we),
            _share(they),
            _share(heads),
            kept,
            _silent(we),
            said,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", summary(rows, names)])


def summary(rows: list[Row], names: list[str]) -> str:
    """Return how many models came out how, and how large the largest difference is."""
    lines: list[str] = []
    for side in ("archlearn", "torch-pruning", "torch-pruning heads"):
        of_side = [row for row in rows if row["side"] == side and row["model"] in names]
        if of_side:
            counts = Counter(row["result"] for row in of_side)
            said = ", ".join(f"{n} {result}" for result, n in counts.most_common())
            lines.append(f"{side}: {len(of_side)} of {len(names)} models measured: {said}.")
    ours = [row for row in rows if row["side"] == "archlearn" and row["model"] in names]
    worst = max((row["difference"] for row in ours if "difference" in row), default=0.0)
    lost = sum(row.get("types_kept") is False for row in ours)
    silent = sum(bool(row.get("silent_in_training")) for row in ours)
    lines.append(
        f"Largest difference {worst:.1e}; output types lost in {lost} models; gates without a "
        f"gradient in training mode in {silent}."
    )
    return "\n".join(lines)


def larger(rows: list[Row], names: list[str]) -> str:
    """Return where more is left of a model than Torch-Pruning leaves, and why."""
    lines: list[str] = []
    for name in names:
        of_name = [row for row in rows if row["model"] == name and "left" in row]
        ours = [row["left"] for row in of_name if row["side"] == "archlearn"]
        theirs = [row["left"] for row in of_name if row["side"] != "archlearn"]
        if ours and theirs and ours[0] > min(theirs) + _NEAR:
            why = next((text for known, text in _WHY.items() if fnmatch(name, known)), "not known")
            lines.append(f"* {name} ({ours[0]:.3f}, Torch-Pruning {min(theirs):.3f}): {why}.")
    none = "In no model more is left than Torch-Pruning leaves."
    return "\n".join(
        ["Where more is left than Torch-Pruning leaves:", "", *lines] if lines else [none]
    )


def matrix(rows: list[Row], names: list[str]) -> str:
    """Return the page of model families: in how many of them what is learnt, and is it exact."""
    ours = {row["model"]: row for row in rows if row["side"] == "archlearn"}
    lines = [
        "# Which models",
        "Is your model followed, and is the compact model exact? Here are small configurations of "
        "real models with half of every group of channels closed; exact means that compact and "
        "gated model differ by at most 1e-10 of the largest output in float64. The columns widths, "
        "depth (layers that may merge) and branches (blocks that may go as a whole) count the "
        "exact models in which these can be learnt. `al.inspect(net, x)` says the same of your "
        "model.",
        "Measured by `make zoo`; `results/zoo.md` has each model, and the commits.",
        f"| models of | measured | exact | {' | '.join(_LEARNT)} | refused or failed |\n"
        f"|---|--:|--:|{'--:|' * len(_LEARNT)}---|",
    ]
    for family, words in _FAMILIES.items():
        mine = [name for name in names if name.partition("/")[0] == family]
        found = [ours[name] for name in mine if name in ours]
        exact = [row for row in found if row["result"] == "exact"]
        learnt = [_count(row.get(key) for row in exact) for key in _LEARNT.values()]
        others = ", ".join(
            f"{row['model'].partition('/')[2]} ({row['result']})"
            for row in found
            if row["result"] != "exact"
        )
        cells = [words, f"{len(found)} of {len(mine)}", str(len(exact)), *learnt, others]
        lines[-1] += f"\n| {' | '.join(cells)} |"
    return "\n\n".join(lines) + "\n"


def _count(values: Iterable[int | None]) -> str:
    """Return in how many models there is something, or a dash where none was asked."""
    asked = [value for value in values if value is not None]
    return str(sum(value > 0 for value in asked)) if asked else "–"


def page(rows: list[Row], names: list[str], circumstances: dict[str, str]) -> str:
    """Return the whole page: what it is, with what it was made, and the table."""
    commits = {side: _commits(rows, side) for side in ("archlearn", "torch-pruning")}
    return "\n\n".join(
        [
            f"# Zoo: {len(names)} real models",
            f"Written by {as_markdown(circumstances)} Rows of archlearn were measured at "
            f"{commits['archlearn']}, those of Torch-Pruning at {commits['torch-pruning']}.",
            _HOW,
            larger(rows, names),
            table(rows, names) + "\n",
        ]
    )


def _commits(rows: list[Row], side: str) -> str:
    found = {str(row["commit"]) for row in rows if row["side"].startswith(side)}
    return ", ".join(sorted(found)) or "no commit"


def _share(row: Row) -> str:
    if "left" in row:
        return f"{row['left']:.3f}"
    return row["result"] if row.get("result") in ("fails", "too slow") else "–"


def _silent(row: Row) -> str:
    silent = row.get("silent_in_training", "")
    return silent if isinstance(silent, str) else f"{len(silent)} of {row['groups']}"
