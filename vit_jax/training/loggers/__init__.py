"""Destinations of a run's numbers, each a run_log.Logger: TensorBoard, W&B, MLflow."""
