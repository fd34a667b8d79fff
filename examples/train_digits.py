"""Train a small digit classifier and write it as an ONNX model with held-out test data.

The script trains a convolutional network with PyTorch on the 8x8 handwritten digits that ship with scikit-learn, and
writes two files beside itself:

* ``digits.onnx``: the trained network, taking ``input`` (batch, 1, 8, 8) and giving ``logits`` (batch, 10)
* ``digits.npz``: the held-out images as ``input`` (float32, scaled to 0..1) and their classes as ``labels`` (int64)

The data is ``sklearn.datasets.load_digits``, a copy of the test set of: E. Alpaydin and C. Kaynak, "Optical Recognition
of Handwritten Digits", UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49 (CC BY 4.0).

To run it (well under a minute on a CPU; onnxruntime is optional, and used to check the model against PyTorch)::

    pip install torch==2.13.0 scikit-learn numpy onnx onnxruntime
    python examples/train_digits.py
"""

from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

EPOCHS = 60
BATCH_SIZE = 64


def build_net() -> nn.Sequential:
    """Return the untrained network; the names of its layers become the names of the ONNX nodes and weights."""
    layers = OrderedDict(conv1=nn.Conv2d(1, 32, 3, padding=1), relu1=nn.ReLU())
    layers.update(conv2=nn.Conv2d(32, 32, 3, padding=1), relu2=nn.ReLU(), pool=nn.MaxPool2d(2))
    layers.update(conv3=nn.Conv2d(32, 64, 3), relu3=nn.ReLU(), flatten=nn.Flatten())
    layers.update(fc1=nn.Linear(64 * 2 * 2, 64), relu4=nn.ReLU(), fc2=nn.Linear(64, 10))
    return nn.Sequential(layers)


def shift_randomly(images: torch.Tensor) -> torch.Tensor:
    """Move each image by -1, 0 or 1 pixel along both axes, filling the uncovered border with zeros."""
    count, _, height, width = images.shape
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    rows = torch.randint(0, 3, (count, 1, 1)) + torch.arange(height).view(1, -1, 1)
    columns = torch.randint(0, 3, (count, 1, 1)) + torch.arange(width).view(1, 1, -1)
    return padded[torch.arange(count).view(-1, 1, 1), 0, rows, columns].unsqueeze(1)


def train(net: nn.Sequential, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Train the network in place for a fixed number of epochs."""
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-2)
    steps = -(-len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, epochs=EPOCHS, steps_per_epoch=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH_SIZE):
            loss = nn.functional.cross_entropy(net(shift_randomly(images[batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def build_onnx(net: nn.Sequential) -> onnx.ModelProto:
    """Write the network as a checked ONNX model: one node per layer, each output but the last named after its node."""
    operators = {
        nn.Conv2d: ("Conv", lambda conv: {"kernel_shape": conv.kernel_size, "pads": conv.padding * 2}),
        nn.ReLU: ("Relu", lambda _: {}),
        nn.MaxPool2d: ("MaxPool", lambda pool: {"kernel_shape": [pool.kernel_size] * 2, "strides": [pool.stride] * 2}),
        nn.Flatten: ("Flatten", lambda flatten: {"axis": flatten.start_dim}),
        nn.Linear: ("Gemm", lambda _: {"transB": 1}),
    }
    nodes, source = [], "input"
    for name, layer in net.named_children():
        op_type, attributes = operators[type(layer)]
        weights = [f"{name}.{weight}" for weight, _ in layer.named_parameters()]
        nodes.append(helper.make_node(op_type, [source, *weights], [name], name=name, **attributes(layer)))
        source = name
    nodes[-1].output[0] = "logits"
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 8, 8])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])]
    initializers = [numpy_helper.from_array(tensor.numpy(), name) for name, tensor in net.state_dict().items()]
    graph = helper.make_graph(nodes, "digits", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def main() -> None:
    """Train the network, print its held-out accuracy, and write the two files."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the order of floating-point sums must not depend on the number of cores
    data, target = load_digits(return_X_y=True)
    images, labels = (data / 16).astype(np.float32).reshape(-1, 1, 8, 8), target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=0)
    net = build_net()
    train(net, torch.from_numpy(train_x), torch.from_numpy(train_y))
    with torch.no_grad():
        logits = net(torch.from_numpy(test_x)).numpy()
    print(f"held-out accuracy: {np.mean(logits.argmax(1) == test_y):.2%} of {len(test_y)} images")
    model = build_onnx(net)
    if find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(["logits"], {"input": test_x})[0], logits, rtol=1e-4, atol=1e-4)
    onnx.save(model, Path(__file__).with_name("digits.onnx"))
    np.savez_compressed(Path(__file__).with_name("digits.npz"), input=test_x, labels=test_y)


if __name__ == "__main__":
    main()
