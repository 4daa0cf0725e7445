"""`Plan`: what is kept, folded, merged and left out, and what that costs, as plain data."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from archlearn.analysis.original_channels import KeptChannels
from archlearn.costs import COSTS, Costs
from archlearn.errors import InputError

PLAN_VERSION = 2


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The indices of one dimension of one parameter or buffer that are kept."""

    name: str
    dim: int
    size: int
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Inputs of a layer that are constant once dropped, and move into its bias."""

    layer: str
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """A run of linear layers: either merged into the first, or left, whichever is cheaper.

    Attributes:
        layers: The layers, in order.
        norms: BatchNorms between them, folded into the layer in front.
        sites: The sites between them; all are linear.
        before: What the layers cost apart.
        after: What they cost as one.
        made: Whether the merge pays, and so is made.
    """

    layers: tuple[str, ...]
    norms: tuple[str, ...]
    sites: tuple[str, ...]
    before: int
    after: int
    made: bool

    def __str__(self) -> str:
        verdict = "merged" if self.made else "not merged, it does not pay"
        return f"{' + '.join(self.layers)}: {self.before:,} -> {self.after:,} ({verdict})"


@dataclass(frozen=True, slots=True)
class Plan:
    """What `compact` will do.

    Attributes:
        widths: The channels kept in each group of gates.
        narrowings: Every dimension of every parameter and buffer that loses indices.
        folds: Constants that move into a bias.
        linear: Sites that have become linear: their activation is left out.
        merges: Layers that could merge, with the arithmetic.
        branches: Residual branches that are closed: their addition is left out.
        removed: Parameters and buffers that nothing needs any more then.
        pay: What a merge must lower: parameters or multiply_adds.
        before: The costs of the network as it stands.
        after: The costs that the compact network will have.
    """

    widths: dict[str, tuple[int, ...]]
    narrowings: tuple[Narrowing, ...]
    folds: tuple[Fold, ...]
    linear: tuple[str, ...]
    merges: tuple[Merge, ...]
    pay: str
    before: Costs
    after: Costs
    branches: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def kept(self, before: KeptChannels | None = None) -> KeptChannels:
        """Return the indices that stay, by the names of tensors and their dimensions.

        Tensors and dimensions that are not named keep all.

        Args:
            before: The same of a model that had been compacted earlier; indices are then those of
                the original.
        """
        kept = {name: dict(by_dim) for name, by_dim in (before or {}).items()}
        for narrowing in self.narrowings:
            by_dim = kept.setdefault(narrowing.name, {})
            old = by_dim.get(narrowing.dim, range(narrowing.size))
            by_dim[narrowing.dim] = tuple(old[i] for i in narrowing.kept)
        for fold in self.folds:  # it may make a bias where there was none
            _copy_rows_(kept, fold.layer, fold.layer)
        for merge in self.merges:
            if merge.made:
                _copy_rows_(kept, merge.layers[-1], merge.layers[0])
        for name in self.removed:
            kept.pop(name, None)
        return kept

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps({"archlearn_plan": PLAN_VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan that `to_json` wrote.

        Raises:
            InputError: If the text is no plan, or one of a later version.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.pop("archlearn_plan")
            if version > PLAN_VERSION:
                raise InputError(
                    f"the plan has version {version}; this archlearn reads {PLAN_VERSION}"
                )
            kinds = {"narrowings": Narrowing, "folds": Fold, "merges": Merge}
            for name, kind in kinds.items():
                data[name] = tuple(kind(**_with_tuples(item)) for item in data[name])
            for name in ("before", "after"):  # there may have been fewer kinds of costs
                data[name] = Costs(**{**dict.fromkeys(COSTS, 0), **data[name]})
            return cls(**_with_tuples(data | {"widths": _with_tuples(data["widths"])}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"this is no plan that archlearn wrote: {error!r}") from error

    def __str__(self) -> str:
        lines = [f"plan: {self.before} -> {self.after}"]
        lines += [f"  {branch}: branch left out" for branch in self.branches]
        lines += [f"  {name}: removed" for name in self.removed]
        lines += [
            f"  {n.name} dimension {n.dim}: keep {len(n.kept)} of {n.size}" for n in self.narrowings
        ]
        lines += [f"  {f.layer}: {len(f.columns)} constants into the bias" for f in self.folds]
        lines += [f"  {site}: linear" for site in self.linear]
        lines += [f"  {merge}" for merge in self.merges]
        return "\n".join(lines)


def _copy_rows_(kept: KeptChannels, source: str, target: str) -> None:
    """Let the outputs of one layer be those of another."""
    rows = kept.get(f"{source}.weight", {}).get(0)
    for name in (f"{target}.weight", f"{target}.bias"):
        kept.setdefault(name, {}).pop(0, None)
        if rows is not None:
            kept[name][0] = rows


def _with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
