"""A board that a tag describes is compiled for: what TVM does not know of it stays here."""

import numpy as np
import pytest
from models import DIGITS

import tvmtarget as tt
from tvmtarget.errors import RunError

BOARDS = {
    "raspberry-pi/4b": "aarch64-linux-gnu",
    "rockchip/rk3588": "aarch64-linux-gnu",
    "riscv/visionfive-2": "riscv64-unknown-linux-gnu",
}


@pytest.mark.parametrize(("name", "triple"), BOARDS.items())
def test_a_board_is_cross_compiled_for(name, triple):
    pytest.importorskip("tvm")
    exe = tt.build(tt.IRModule.from_onnx(DIGITS), name)
    assert set(exe.backends.values()) == {"tvm"}
    with pytest.raises(RunError, match=f"mtriple {triple}: it is "):
        exe(np.zeros((1, 1, 8, 8), np.float32))
