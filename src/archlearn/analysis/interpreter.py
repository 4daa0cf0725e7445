"""A network is run call by call; what is known of a call's result need not be computed."""

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx, nn
from torch.fx.node import map_arg
from torch.utils.flop_counter import FlopCounterMode

from archlearn.analysis.linear_ops import read_linear_op
from archlearn.analysis.receptive_field import Watch
from archlearn.analysis.rule_api import Rule, opaque
from archlearn.analysis.rules.linear import linear
from archlearn.analysis.rules.pooling import pool
from archlearn.analysis.rules.registry import rule_for
from archlearn.analysis.shape_inference import guess_output
from archlearn.errors import InputError, first_line
from archlearn.module_utils import find_module
from archlearn.tracing.fx_utils import call_node, thaw
from archlearn.tracing.transformer_blocks import unfused


class Runner(fx.Interpreter):
    """Runs a graph on the example inputs.

    Attributes:
        rules: How labels pass each call.
        may_guess: Whether only shapes and types of results matter: no call is unknown.
        other_multiply_adds: Multiply-adds of all calls that are not linear ops, so far.
        watch: Sees how much smaller images might be.
    """

    def __init__(self, net: nn.Module, graph: fx.Graph) -> None:
        super().__init__(net, graph=graph)
        self.net = net
        self.extra_traceback = False  # torch.fx would write pages behind our own errors
        self.rules = find_rules(net, graph)
        self.may_guess = not any(_is_unknown(node, net, rule) for node, rule in self.rules.items())
        self.other_multiply_adds = 0
        self.watch = Watch()

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return an argument; those that go by any other name are none."""
        return {} if str(target).startswith("**") else super().placeholder(target, args, kwargs)

    def run_call(self, n: fx.Node) -> Any:
        """Return what a call gives on the example inputs, or something like it."""
        try:
            is_unknown = _is_unknown(n, self.net, self.rules.get(n))
            return self._run_unknown(n) if is_unknown else self._run_known(n)
        except Exception as error:
            where = f"at {n.target!r}" if n.op == "call_module" else f"at {n.name}"
            raise InputError(
                f"the model does not run on the example inputs: {where}: {first_line(error)}. "
                f"Give inputs that model(...) takes, {_how(error)}"
            ) from error

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, with lists that it may change."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return thaw(args), thaw(kwargs)

    def _run_unknown(self, n: fx.Node) -> Any:
        self.watch.shrink = 1.0  # it may hold anything
        counter: Any = FlopCounterMode(display=False)
        with unfused(), counter:
            out = super().run_node(n)
        self.other_multiply_adds += counter.get_total_flops() // 2
        return out

    def _run_known(self, n: fx.Node) -> Any:
        rule = self.rules.get(n)
        if self.may_guess and rule is not None:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            guessed = guess_output(n, self.net, args, kwargs)
            if guessed is not None:
                if rule is linear:
                    self.watch.note_module(find_module(self.net, str(n.target)), args[0])
                return guessed
        if rule not in (linear, pool):
            return super().run_node(n)
        with self.watch:
            return super().run_node(n)


def _how(error: Exception) -> str:
    if "more than 1 value per channel" in str(error):
        return "also in training mode: two rows or more, for its norms need a batch then"
    return "on the device and in the dtype of the model"


def find_rules(net: nn.Module, graph: fx.Graph) -> dict[fx.Node, Rule]:
    """Return how labels pass each call."""
    return {node: rule_for(node, net) for node in graph.nodes if "call" in node.op}


def is_all_known(net: nn.Module, graph: fx.Graph) -> bool:
    """Return whether no call of a graph is unknown."""
    found = find_rules(net, graph)
    return not any(_is_unknown(node, net, rule) for node, rule in found.items())


def _is_unknown(n: fx.Node, net: nn.Module, rule: Rule | None) -> bool:
    return rule is opaque or (rule is linear and read_linear_op(n, net) is None)


def run_graph(net: nn.Module, graph: fx.Graph, inputs: Sequence[Any]) -> Any:
    """Return what a graph returns; what is not read any more is let go on the way."""
    left, values = iter(inputs), dict[fx.Node, Any]()
    last = {part: node for node in graph.nodes for part in node.all_input_nodes}
    for node in graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            return args[0]
        if node.op == "placeholder":
            values[node] = next(left)
        elif node.op == "get_attr":
            values[node] = operator.attrgetter(str(node.target))(net)
        else:
            values[node] = call_node(node, net, args, kwargs)
        del args, kwargs
        for part in node.all_input_nodes:
            if last[part] is node:
                values.pop(part, None)
        if node not in last:
            del values[node]
    return None
