"""The program: modules of functions in SSA form, read from and written to ONNX."""
