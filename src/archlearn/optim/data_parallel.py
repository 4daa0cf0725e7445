"""Set `DistributedDataParallel` up anew, in place, around a model that became smaller."""

import gc
import inspect

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def renew_wrappers_(model: nn.Module) -> None:
    """Let every `DistributedDataParallel` around a model hold its parameters as they are now.

    A trainer keeps the wrapper where nobody else can replace it, so it stays the object it is; all
    processes must be here at the same time, as when it was made. Communication hooks stay.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    wrappers = [x for x in gc.get_objects() if issubclass(type(x), DistributedDataParallel)]
    for wrapper in wrappers:
        if any(module is model for module in wrapper.modules()):
            _renew_(wrapper)


def _renew_(wrapper: DistributedDataParallel) -> None:
    held = vars(wrapper)
    parameters = inspect.signature(DistributedDataParallel).parameters
    options = {name: held[name] for name in parameters if name in held}
    if "device_mesh" in options:
        del options["process_group"]
    module, is_training, hooks = wrapper.module, wrapper.training, held["_comm_hooks"]
    del wrapper.reducer, wrapper.logger  # with their hooks on the parameters
    DistributedDataParallel.__init__(wrapper, module, **options)
    wrapper.training = is_training
    for hook, state in hooks:
        wrapper.register_comm_hook(state, hook)
