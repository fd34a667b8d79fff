"""Ways around defects of ONNX's reference evaluator; each says what is wrong and goes when it is mended upstream."""

from __future__ import annotations

import numpy as np
from onnx.reference.ops.op_lrn import LRN as ReferenceLRN  # noqa: N811 - the evaluator finds operators by class name

from tvmtarget.backends.protocol import Array

__all__ = ["FIXES"]


class LRN(ReferenceLRN):  # type: ignore[misc]
    """Local response normalisation, whose loop over channels counts to the number of samples (onnx 1.23).

    The operator looks at each position by itself, so the evaluator is handed the positions in as many samples as
    there are channels, where both numbers agree.
    """

    def _run(self, x: Array, **attributes: object) -> tuple[Array]:
        channels = x.shape[1]
        positions = np.moveaxis(x, 1, 0).reshape(channels, -1)
        count = positions.shape[1]
        padded = np.pad(positions, ((0, 0), (0, -count % max(1, channels))))
        samples = padded.reshape(channels, channels, 1, -1).swapaxes(0, 1)
        result = super()._run(samples, **attributes)[0]
        positions = result.swapaxes(0, 1).reshape(channels, -1)[:, :count]
        return (np.moveaxis(positions.reshape(channels, x.shape[0], *x.shape[2:]), 0, 1),)


FIXES = [LRN]
