"""A number that was read off a channel count keeps the value it had, at every size of the inputs.

`x / x.shape[1]` divides by the channels there were. In `x.numel()` the channels are one factor; the
batch and the image are others, and stay what they are at each call.
"""

import operator
from fractions import Fraction
from typing import Any

from torch import fx
from torch.fx.node import map_arg

from archlearn.analysis.labels import Labels
from archlearn.errors import SurgeryError
from archlearn.tracing.source_location import source_of

_COUNTS = ("numel", "nelement")


class Numbers:
    """Writes numbers into a graph as they were before anything was dropped.

    Args:
        values: What each node returned then, by its name.
        nodes: The nodes of the graph, by their names then.
        narrowed: What each of those returns now.
    """

    def __init__(
        self, values: dict[str, Any], nodes: dict[str, fx.Node], narrowed: dict[fx.Node, Any]
    ) -> None:
        self.values, self.nodes, self.narrowed = values, nodes, narrowed

    def keep(self, old: fx.Node, user: fx.Node) -> Any:
        """Return what a number is to be replaced by where it is used.

        Args:
            old: The node that returned it.
            user: The call in front of which new calls are put.

        Raises:
            SurgeryError: If it hangs on a channel count in a way that is not known.
        """
        node = self.nodes[old.name]
        was: Any = self.values[old.name]
        now: Any = self.narrowed.get(node)
        if isinstance(was, Labels) or was == now:
            return node
        if self._is_size(old) and isinstance(was, int):
            return was
        with user.graph.inserting_before(user):
            if old.target in _COUNTS:
                share = Fraction(was, now)
                times = user.graph.call_function(operator.mul, (node, share.numerator))
                return user.graph.call_function(operator.floordiv, (times, share.denominator))
            if isinstance(was, tuple) and self._is_shape(old):
                return tuple(
                    size if size != now[place] else self._pick(node, place, user)
                    for place, size in enumerate(was)
                )
        if old.op != "call_function" or self._is_shape(old):
            raise SurgeryError(
                f"cannot narrow: {old.name} ({source_of(old)}) is a number that hangs on how many "
                "channels there are; write it as a number, or mark its module in leaves=[...]"
            )
        args, kwargs = map_arg((old.args, old.kwargs), lambda n: self.keep(n, user))
        target: Any = old.target
        with user.graph.inserting_before(user):
            return user.graph.call_function(target, args, kwargs)

    def _pick(self, node: fx.Node, place: int, user: fx.Node) -> fx.Node:
        return user.graph.call_function(operator.getitem, (node, place))

    def _is_size(self, old: fx.Node) -> bool:
        """Return whether a node is one size of a tensor."""
        if old.target == "size":
            return len(old.args) + len(old.kwargs) > 1
        holder = old.args[0] if old.args else None
        is_pick = old.target is operator.getitem and isinstance(old.args[1], int)
        return is_pick and isinstance(holder, fx.Node) and self._is_shape(holder)

    def _is_shape(self, old: fx.Node) -> bool:
        """Return whether a node is the whole shape of a tensor."""
        if old.target == "size":
            return len(old.args) + len(old.kwargs) == 1
        return old.target is getattr and old.args[1] == "shape"
