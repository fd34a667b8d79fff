"""The bridge to ONNX: models read into modules and written from them."""
