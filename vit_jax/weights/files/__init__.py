"""Files of arrays: safetensors, .npz and PyTorch's."""
