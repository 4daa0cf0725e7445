"""Narrow grouped convolutions, norms, attention and means over channels."""

import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from archlearn.analysis.channel_labels import (
    Labels,
    line_along,
    pointwise,
    varying,
    without_repeats,
)
from archlearn.analysis.linear_ops import is_called_again, is_linear_op, read_linear_op
from archlearn.analysis.propagation_rules import rule_for
from archlearn.analysis.propagation_rules.normalization import across_channels, group_norm
from archlearn.analysis.propagation_rules.products import attention
from archlearn.module_utils import find_module
from archlearn.nn.norms import NarrowedLocalResponseNorm
from archlearn.op_table import spec_of_class

_WINDOW = ("size", "alpha", "beta", "k")


@dataclass(frozen=True, slots=True)
class SpecialCall:
    """A call, and the labels of its input and output before anything was dropped.

    Attributes:
        is_gated: Whether it reads its input through gates.
        is_whole: Whether it loses whole groups, and not parts of each.
    """

    net: nn.Module
    node: fx.Node
    source: Any
    out: Any
    root: Tensor
    dropped: Tensor
    is_gated: bool
    is_whole: bool

    def stays(self, ids: Tensor) -> Tensor:
        """Return which channels stay."""
        return ~self.dropped[self.root[ids]]

    def narrow_(self, done: set[str]) -> bool:
        """Narrow the call in place; return whether the graph itself had to change.

        `done` are the modules that have been narrowed already, for another graph or call.
        """
        node, net = self.node, self.net
        if not isinstance(self.source, Labels) or not isinstance(self.out, Labels):
            return False
        if is_linear_op(node, net):
            return self._set_groups_(done)
        module: Any = find_module(net, str(node.target)) if node.op == "call_module" else None
        is_local = isinstance(module, nn.LocalResponseNorm | NarrowedLocalResponseNorm)
        if is_local or node.target is F.local_response_norm:
            return self._narrow_local_response_(module)
        if node.target in (torch.mean, "mean"):
            return not self.is_gated and self._narrow_mean_()
        rule = rule_for(node, net)
        last = self.source.ids.dim() - 1
        labels = self.source if rule is attention else self.out  # a norm may let go of heads alone
        if rule in (across_channels, attention) and last not in varying(
            pointwise(self.root.__getitem__, labels.ids)
        ):
            return False  # heads lie along another dimension
        if rule is across_channels:
            return self._set_size_(module, "normalized_shape", line_along(self.out.ids, last))
        if rule is group_norm:
            return self._set_size_(module, "num_groups", line_along(self.out.ids, 1))
        if rule is attention:
            return self._keep_scale_()
        spec = None if module is None else spec_of_class(type(module))
        if spec is not None and spec.rule == "normalization.within_channel":
            setattr(module, spec.sized_by, int(self.stays(line_along(self.out.ids, 1)).sum()))
        return False

    def _keep_scale_(self) -> bool:
        """Let attention divide by the root of as many channels of a query as there were."""
        stays = self.stays(line_along(self.source.ids, self.source.ids.dim() - 1))
        has_scale = len(self.node.args) > 6 or self.node.kwargs.get("scale") is not None
        if bool(stays.all()) or has_scale:
            return False
        self.node.update_kwarg("scale", len(stays) ** -0.5)
        return True

    def _narrow_mean_(self) -> bool:
        """Divide a mean over channels by as many as there were: those that went were zero."""
        left = [self.stays(without_repeats(labels.ids)) for labels in (self.source, self.out)]
        source, out = (Fraction(int(is_open.sum()), max(1, is_open.numel())) for is_open in left)
        if source == out:
            return False
        with self.node.graph.inserting_after(self.node):
            share = float(source / out)
            scaled = self.node.graph.call_function(operator.mul, (self.node, share))
        self.node.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)
        return True

    def _set_size_(self, module: Any, name: str, ids: Tensor) -> bool:
        """Set the size of a norm, or its number of groups; return whether the graph changed."""
        n_kept = int(self.stays(ids).sum())
        if n_kept == len(ids):
            return False
        if module is not None:
            if name == "normalized_shape":
                module.normalized_shape = (n_kept,)
            elif module.num_channels != n_kept:
                if self.is_whole:
                    module.num_groups = module.num_groups * n_kept // module.num_channels
                module.num_channels = n_kept
            return False
        if name == "num_groups" and not self.is_whole:
            return False
        size_written: Any = self.node.args[1] if len(self.node.args) > 1 else self.node.kwargs[name]
        size: Any = (n_kept,) if name == "normalized_shape" else size_written * n_kept // len(ids)
        self._set_argument_(1, name, size)
        return True

    def _set_argument_(self, position: int, name: str, value: Any) -> None:
        """Give the call another argument, by position where it was given so."""
        if len(self.node.args) > position:
            self.node.update_arg(position, value)
        else:
            self.node.update_kwarg(name, value)

    def _set_groups_(self, done: set[str]) -> bool:
        op = read_linear_op(self.node, self.net)
        if op is None or op.groups == 1 or op.layer in done:
            return False
        stays = self.stays(line_along(self.out.ids, op.channel_dim))
        groups = int(stays.reshape(op.groups, -1).any(1).sum())
        if not op.is_module:
            self._set_argument_(6, "groups", groups)
            return groups != op.groups
        module: Any = find_module(self.net, op.layer)
        module.groups = groups
        done.add(op.layer)
        return False

    def _narrow_local_response_(self, old: Any) -> bool:
        """Put in a normalisation of fewer channels, each with the number that it had at first."""
        node, net = self.node, self.net
        stays = self.stays(line_along(self.source.ids, 1))
        n_original, kept = len(stays), torch.nonzero(stays).flatten().tolist()
        if len(kept) == n_original:
            return False
        settings: dict[str, Any] = {"alpha": 1e-4, "beta": 0.75, "k": 1.0}
        if old is not None:
            settings = {name: getattr(old, name) for name in _WINDOW}
            if isinstance(old, NarrowedLocalResponseNorm):
                n_original, kept = old.n_original, old.kept[kept].tolist()
        else:
            settings |= dict(zip(_WINDOW, node.args[1:], strict=False)) | dict(node.kwargs)
        window = [settings[name] for name in _WINDOW]
        narrowed = NarrowedLocalResponseNorm(*window, n_original=n_original, kept=kept)
        narrowed.to(next((p.device for p in net.parameters()), None))
        if old is not None and not is_called_again(node):
            net.set_submodule(str(node.target), narrowed)
            return False
        name = f"archlearn_norm_{sum(n.startswith('archlearn_norm_') for n in net._modules)}"
        net.add_module(name, narrowed)
        with node.graph.inserting_before(node):
            fresh = node.graph.call_module(name, (node.all_input_nodes[0],))
        node.replace_all_uses_with(fresh)
        node.graph.erase_node(node)
        return True
