"""`Conditions`: how a model is used while it is timed: device, precision, memory layout, call.

Half of the multiply-adds can take all of the time in one precision and half of it in another, and
launches that dominate eager calls are absent from a CUDA graph. So a latency is measured under the
conditions of use, and a table of latencies names them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.module_utils import find_reference, tensors_of
from archlearn.tracing.example_inputs import ExampleInputs

Mode = Literal["eager", "graph", "compile"]
_LAYOUTS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}
_N_WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a model is used while it is timed.

    Attributes:
        device: "cpu", "cuda" or "cuda:1".
        dtype: The precision of weights and inputs, as "bfloat16"; None for the model's own.
        memory_format: "contiguous", "channels_last" or "channels_last_3d".
        mode: "eager", as a replayed CUDA "graph", or by torch's "compile".
    """

    device: str
    dtype: str | None = None
    memory_format: str = "contiguous"
    mode: Mode = "eager"

    @classmethod
    def of(
        cls,
        model: nn.Module,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        memory_format: str | torch.memory_format | None = None,
        mode: Mode = "eager",
    ) -> "Conditions":
        """Return the conditions that were asked for; what is left out is as the model is now.

        Raises:
            InputError: If there is no such precision, layout or mode, or no GPU for a graph.
        """
        reference = find_reference(model)
        device = device or (reference.device if reference is not None else "cpu")
        layout = str(memory_format or _layout_of(model)).removeprefix("torch.")
        layout = {"contiguous_format": "contiguous"}.get(layout, layout)
        name = None if dtype is None else str(dtype).removeprefix("torch.")
        _check("memory_format", layout, _LAYOUTS)
        _check("mode", mode, get_args(Mode))
        asked = getattr(torch, name, None) if name is not None else torch.float32
        if not isinstance(asked, torch.dtype) or not asked.is_floating_point:
            raise InputError(f'dtype is {dtype!r}; give a precision such as "bfloat16"')
        if mode == "graph" and torch.device(device).type != "cuda":
            raise InputError(
                f'mode is "graph", a CUDA graph, on the device {str(device)!r}; '
                'give device="cuda", or mode="eager" or "compile"'
            )
        return cls(str(torch.device(device)), name, layout, mode)

    def place_(self, model: nn.Module) -> None:
        """Bring a model to the device, the precision and the layout."""
        for _, tensor in tensors_of(model):
            tensor.data = self._place(tensor.data.to(self.device))

    def place_inputs(self, inputs: ExampleInputs) -> ExampleInputs:
        """Return inputs on the device, in the precision and the layout."""
        return inputs.to(self.device).map(self._place)

    def prepare(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return what is timed in place of a call: itself, its CUDA graph, or its compiled form."""
        if self.mode == "compile":
            return torch.compile(call)
        return capture(call, torch.device(self.device)) if self.mode == "graph" else call

    def _place(self, tensor: Tensor) -> Tensor:
        if self.dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, self.dtype))
        layout = _LAYOUTS[self.memory_format]
        n_dims = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(layout, tensor.dim())
        # `contiguous` would leave a weight of one input channel in channels-last strides.
        fits = tensor.dim() == n_dims
        return tensor.clone(memory_format=layout if fits else torch.contiguous_format)


def capture(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return the replay of a CUDA graph that was captured from a call without gradients."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_N_WARM_UPS):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        held = call()

    def replay() -> object:
        graph.replay()
        return held  # the memory that the graph writes to

    return replay


def _layout_of(model: nn.Module) -> str:
    """Return the layout of a model's convolutions."""
    for n_dims, name in ((4, "channels_last"), (5, "channels_last_3d")):
        kernels = [p for p in model.parameters() if p.dim() == n_dims and p.shape[1] > 1]
        strided = [p for p in kernels if not p.is_contiguous()]
        if strided and all(p.is_contiguous(memory_format=_LAYOUTS[name]) for p in strided):
            return name
    return "contiguous"


def _check(argument: str, value: object, choices: Mapping[str, Any] | tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{argument} is {value!r}; choose one of {', '.join(choices)}")
