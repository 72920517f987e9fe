"""JAX's programs as ONNX graphs, operation by operation."""
