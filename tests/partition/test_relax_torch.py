"""A module of PyTorch, as TVM reads it, is divided, rebuilt by TVM and computes what PyTorch does."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install torch==2.13.0")
tvm = pytest.importorskip("tvm", reason="pip install 'tvmtarget[tvm]'")

from relax_modules import register_codegen, run  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

import tvmtarget as tt  # noqa: E402

CORES = "[big=llvm(num-cores=4),little=llvm(num-cores=2)](host=@big)"


@tt.strategy("torch-npu")
class Npu:
    """An engine for convolutions and what follows them."""

    ops = frozenset({"relax.nn.conv2d", "relax.nn.relu", "relax.add", "relax.matmul"})
    patterns = {"conv_add": "add(conv2d(x, w), b)"}


NPU = "[npu=torch-npu,cpu=llvm](host=@cpu)"


class Net(torch.nn.Module):  # type: ignore[name-defined]
    """A convolution, a normalisation, and a classifier."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
        )
        self.classify = torch.nn.Linear(4 * 8 * 8, 5)

    def forward(self, x):
        return torch.softmax(self.classify(torch.flatten(self.features(x), 1)), dim=-1)


@pytest.fixture(scope="module")
def net():
    """A network whose normalisation is not the identity."""
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net(torch.randn(16, 3, 8, 8))  # running means and variances
    return net.eval()


def imported(net, *, is_dynamic):
    dims = {"x": {0: torch.export.Dim("batch", min=2, max=64)}} if is_dynamic else None
    exported = torch.export.export(net, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=dims)
    return from_exported_program(exported)


def assert_as_torch(executable, net, rows, devices=None):
    x = torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(rows))
    with torch.no_grad():
        expected = net(x).numpy()
    (actual,) = run(executable, x.numpy(), devices=devices)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_an_exported_module_is_read_without_loss(net, is_dynamic):
    module = imported(net, is_dynamic=is_dynamic)
    ours = tt.IRModule.from_tvm(module)
    tvm.ir.assert_structural_equal(tt.IRModule.parse(str(ours), ours.constants()).to_tvm(), module)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_an_external_generator_and_tvm_compute_what_pytorch_does(net, is_dynamic):
    plan = tt.decompose(imported(net, is_dynamic=is_dynamic), NPU)
    assert {subgraph.site for subgraph in plan.subgraphs} == {"npu", "cpu"}
    matches = [match for function in plan.functions("npu") for match in function.attr("matches") or ()]
    assert matches == [("conv_add", "lv", "lv2")]
    module = plan.to_tvm()
    relax.analysis.well_formed(module)
    seen = register_codegen("torch-npu")
    executable = tvm.compile(relax.transform.RunCodegen(plan.codegen_options())(module), target="llvm")
    assert seen
    for rows in (2, 7) if is_dynamic else (2,):
        assert_as_torch(executable, net, rows)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_two_virtual_devices_compute_what_pytorch_does(net, is_dynamic):
    plan = tt.decompose(imported(net, is_dynamic=is_dynamic), CORES, where={"op:relax.nn.relu": "@little"})
    module = plan.to_tvm()
    relax.analysis.well_formed(module)
    executable = tvm.compile(module)
    for rows in (2, 7) if is_dynamic else (2,):
        assert_as_torch(executable, net, rows, devices=[tvm.cpu(0), tvm.cpu(1)])
