"""OpenVINO as a code generator: its backend, and where its results are made those that ONNX defines."""
