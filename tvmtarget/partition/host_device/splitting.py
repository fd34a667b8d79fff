"""Split every mixed function of a module into a host function and device functions."""

from __future__ import annotations

from tvmtarget.errors import TargetError
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.decomposition import Request
from tvmtarget.partition.host_device.code import split_code
from tvmtarget.partition.pipeline import plan_request
from tvmtarget.partition.preparation import prepare
from tvmtarget.target.argument_types import check_arguments
from tvmtarget.target.topology import Topology
from tvmtarget.target.tree import TargetLike, as_target

__all__ = ["split_host_device"]


@check_arguments
def split_host_device(module: IRModule, target: TargetLike | None = None) -> IRModule:
    """Separate host and device code of all mixed functions (TVM: SplitHostDevice).

    A function that is constrained to a device which another site drives is mixed. It becomes a function that runs on
    the host (`is-host-function`, calling convention `packed`, `drives` the device, constrained to the host), which
    only calls, copies and branches; device functions (calling convention `device-kernel-launch`, constrained to the
    device); and functions on the host for shape and scalar work. Opaque TIR functions are split by TVM's pass: those
    that are constrained to a device, those whose TVM target is one, and others for the only device there is. The pass
    is idempotent.

    Args:
        module: the module.
        target: target tree; by default that of the module.

    Returns:
        The module with host functions and device functions.

    Raises:
        TargetError: neither an argument nor the module names a target.
        InfeasibleError: an operation fits no site.
        ModelError: the module is invalid, or TVM cannot split a function.
    """
    chosen = module.target if target is None else as_target(target)
    if chosen is None:
        raise TargetError("no target is given and the module has none; pass one, such as 'cuda'")
    placed = module.with_target(chosen.resolve())
    topology = Topology(chosen.resolve())
    coded = {function.name for function in placed if function.code is not None}
    for function in split_code(placed.by_name, topology) if coded else ():
        placed = placed.with_function(function)
    if "main" not in placed or placed.main.code is not None:
        return placed.verify()
    request = Request(placed, chosen)
    return plan_request(request, prepare(request, splits=True)).module
