"""The layers that models are made of. They name logical axes, never a mesh."""
