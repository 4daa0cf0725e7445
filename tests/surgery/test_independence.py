"""No model is certified that shares code or tensors with the gated one."""

import copy
import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Wrap = Callable[[Any], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen, self.relu, self.back = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(self.relu(self.widen(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


def gate(net: nn.Module | None = None) -> Any:
    torch.manual_seed(0)
    model = al.add_gates(net or Net(), X)
    with torch.no_grad():
        al.width_gates(model)["block.widen"][[0, 3]] = 0.1
    return model


def compile_forward(model: Any) -> None:
    model.forward = torch.compile(model.forward, backend="eager")


def compile_twice(model: Any) -> None:
    compile_forward(model)
    compile_forward(model)


def bind_own(model: Any) -> None:
    model.forward = model.forward


def compile_in_place(model: Any) -> None:
    model.compile(backend="eager")


def prepare(model: Any) -> None:
    if find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    import accelerate

    accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(model)


def compile_and_prepare(model: Any) -> None:
    compile_forward(model)
    prepare(model)


def prepare_and_extract(model: Any) -> None:
    """Accelerate leaves a bound method on the instance when it takes its wrapper away."""
    prepare(model)
    import accelerate

    accelerate.Accelerator().unwrap_model(model, keep_fp32_wrapper=False)


def call_by_lambda(model: Any) -> None:
    old = model.forward
    model.forward = lambda *args: old(*args)


def call_by_autocast(model: Any) -> None:
    old = model.forward

    @functools.wraps(old)
    def forward(*args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return old(*args)

    model.forward = forward


def call_twice_as_much(model: Any) -> None:
    old = model.forward
    model.forward = lambda x: 2 * old(x)


def call_over_accelerate(model: Any) -> None:
    prepare(model)
    call_by_lambda(model)


KNOWN: list[Wrap] = [
    compile_forward, compile_twice, bind_own, compile_in_place, prepare, compile_and_prepare,
    prepare_and_extract,
]  # fmt: skip
OTHERS: list[Wrap] = [
    call_by_lambda, call_by_autocast, call_twice_as_much, call_over_accelerate,
]  # fmt: skip


def zero_(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def assert_stands_alone(small: nn.Module, meant: Tensor) -> None:
    torch.testing.assert_close(small(X), meant)
    assert "forward" not in vars(small)
    assert not zero_(small)(X).any()


@pytest.mark.parametrize("wrap", KNOWN)
@pytest.mark.parametrize("certified", [True, False])
def test_a_compact_model_has_no_part_of_a_wrapper_around_the_gated_one(
    wrap: Wrap, certified: bool
) -> None:
    model = gate()
    meant = model(X)
    wrap(model)
    before = vars(model).get("forward")
    small = al.compact(model, certified=certified)
    assert vars(model).get("forward") is before
    assert_stands_alone(small, meant)
    assert al.plan(model) == al.plan(gate())
    assert al.count_costs(model) == al.count_costs(gate())


@pytest.mark.parametrize("wrap", KNOWN)
def test_a_wrapped_model_is_compared_by_its_own_forward(wrap: Wrap) -> None:
    model = gate()
    small = al.compact(model)
    wrap(model)
    assert al.certify(model, small, X).difference_float64 < 1e-10
    wrap(small)
    assert al.certify(model, small, X).difference_float64 < 1e-10


@pytest.mark.parametrize("wrap", OTHERS)
@pytest.mark.parametrize("call", [al.compact, al.plan])
def test_an_unknown_wrapper_is_refused_by_name(call: Callable[..., Any], wrap: Wrap) -> None:
    model = gate()
    wrap(model)
    with pytest.raises(al.InputError, match=r"`del model\.forward`"):
        call(model)
    del model.forward
    call(model)


def test_a_wrapper_around_a_part_is_unwrapped_or_refused() -> None:
    model = gate()
    meant = model(X)
    compile_forward(model.block)
    small: Any = al.compact(model)
    assert "forward" not in vars(small.block)
    assert_stands_alone(small, meant)
    call_by_lambda(model.head)
    with pytest.raises(al.InputError, match=r"model\.head\.forward was put on the instance"):
        al.compact(model)


def test_functions_that_hold_each_other_or_nothing_yet_are_looked_into() -> None:
    model = gate()
    head: Any = model.head

    def even(x: Tensor, n: int = 0) -> Tensor:
        return odd(x) if n == 0 else type(head).forward(head, x)

    def odd(x: Tensor) -> Tensor:
        return even(x, 1)

    def call(x: Tensor) -> Tensor:
        return odd(x) if model.training else later(x)

    for forward in (even, call):  # what `later` is has not been said yet
        head.forward = forward
        with pytest.raises(al.InputError, match=r"model\.head\.forward was put on the instance"):
            al.compact(model)
    later = odd


def test_a_function_that_holds_nothing_of_the_model_may_stay_on_a_part() -> None:
    net: Any = Net()
    net.head.forward = lambda x: x.sum(1)
    small: Any = al.compact(al.add_gates(net, X))
    assert small(X).shape == (3,)


class Chooses(Net):
    """Binds one of its own methods when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.head.forward = self.call_head  # pyright: ignore[reportAttributeAccessIssue]

    def call_head(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.head.weight) * 2


def test_a_method_that_a_model_binds_to_a_part_is_copied_with_it() -> None:
    model = gate(Chooses())
    small = al.compact(model)
    torch.testing.assert_close(small(X), model(X))
    assert not zero_(small)(X).any()


def test_a_certificate_is_refused_to_a_model_that_calls_the_gated_one() -> None:
    model = gate()
    small: Any = al.compact(model)
    small.forward = lambda x: model(x)
    for pair in ((model, small), (small, model)):
        with pytest.raises(al.CertificateError, match="calls 'GatedNet' of the other"):
            al.certify(*pair, X)
    small.forward = lambda x: type(model).forward(model, x)
    with pytest.raises(al.CertificateError, match="'archlearn_gates' of the other"):
        al.certify(model, small, X)


def test_a_certificate_is_refused_to_a_model_that_reads_a_tensor_of_the_gated_one() -> None:
    model = gate()
    small: Any = al.compact(model)
    weight, bias = model.head.weight, model.head.bias
    small.head.forward = lambda x: nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(small(X), model(X))
    with pytest.raises(al.CertificateError, match="do not compute the same function"):
        al.certify(model, small, X)


def test_a_certificate_is_refused_to_a_model_that_shares_memory_with_the_gated_one() -> None:
    model = gate()
    small: Any = al.compact(model)
    small.head.weight = nn.Parameter(model.head.weight.detach())
    with pytest.raises(al.CertificateError, match=r"share the tensor 'head\.weight'"):
        al.certify(model, small, X)
    with pytest.raises(al.CertificateError, match="share the tensor"):
        al.certify(model, model, X)


def test_models_are_left_as_they_were_by_a_refused_certificate() -> None:
    model = gate()
    before = copy.deepcopy(model.state_dict())
    small: Any = al.compact(model)
    small.forward = lambda x: model(x)
    with pytest.raises(al.CertificateError):
        al.certify(model, small, X)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("wrap", [compile_forward, prepare, *OTHERS])
def test_gates_are_added_to_the_model_as_it_was_before_wrapping(wrap: Wrap) -> None:
    net = Net()
    wrap(net)
    with pytest.raises(al.InputError, match=r"`del model\.forward`"):
        al.add_gates(net, X)
    if wrap in OTHERS:
        with pytest.raises(al.InputError, match=r"`del model\.forward`"):
            al.inspect(net, X)


def test_a_part_that_is_compiled_is_gated_without() -> None:
    net = Net()
    compile_forward(net.block)
    model: Any = gate(net)
    assert "forward" not in vars(model.block)
    assert_stands_alone(al.compact(model), model(X))


def test_a_hook_that_calls_the_model_itself_is_refused() -> None:
    net = Net()
    net.head.register_forward_hook(lambda _, given, __: net.block(given[0])[:, :2])
    with pytest.raises(al.TracingError, match="still calls 'block' of the model itself"):
        al.add_gates(net, X)


@pytest.mark.parametrize("wrap", OTHERS)
def test_a_model_is_not_saved_without_what_was_put_on_it(wrap: Wrap, tmp_path: Path) -> None:
    small = al.compact(gate())
    wrap(small)
    with pytest.raises(al.InputError, match=r"`del model\.forward`"):
        al.save(small, tmp_path / "small.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrap", KNOWN)
def test_a_model_is_saved_without_a_known_wrapper(wrap: Wrap, tmp_path: Path) -> None:
    small = al.compact(gate())
    meant = small(X)
    wrap(small)
    al.save(small, tmp_path / "small.safetensors")
    torch.testing.assert_close(al.load(tmp_path / "small.safetensors")(X), meant)
