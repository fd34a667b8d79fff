"""Write the decisions of a plan into the metadata of the original ONNX model, for viewers such as Netron."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtarget.ir.onnx.writer import write_function

if TYPE_CHECKING:
    import onnx

from tvmtarget.partition.decomposition import Decomposition

__all__ = ["annotated_model"]

# The version of the format from which nodes have metadata (onnx/onnx.in.proto, version 10).
_IR_VERSION = 10


def annotated_model(plan: Decomposition) -> onnx.ModelProto:
    """Return the original model with decisions in the metadata of its nodes.

    Args:
        plan: the plan.

    Returns:
        The model. Each node has `tvmtarget.site` and `tvmtarget.function`: the leaf and its function, or the host and
        the driver that run a control-flow operation.
    """
    model = write_function(plan.program.function, {})
    model.ir_version = max(model.ir_version, _IR_VERSION)
    owner = {op: (one.site, one.function) for one in plan.subgraphs for op in (*one.ops, *one.inner)}
    owner |= {one.op: (plan.topology[one.system].host, one.driver) for one in plan.outlined.driven}
    graphs = [model.graph]
    while graphs:
        for node in graphs.pop().node:
            if node.name in owner:
                site, function = owner[node.name]
                node.metadata_props.add(key="tvmtarget.site", value=f"@{site or '.'}")
                node.metadata_props.add(key="tvmtarget.function", value=function)
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return model
