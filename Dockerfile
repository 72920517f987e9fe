# Images with the versions of constraints.txt, for CPUs, GPUs and TPUs (docs/launch.md#containers):
#   docker build --tag vit_jax:cpu .
#   docker build --tag vit_jax:gpu --build-arg EXTRAS=gpu,gcs .
#   docker build --tag vit_jax:tpu --build-arg EXTRAS=tpu,gcs .
FROM python:3.13-slim
ARG EXTRAS=gcs
WORKDIR /vit_jax
# What is installed depends on these alone: a change of other files does not download it again.
COPY constraints.txt pyproject.toml setup.py README.md ./
COPY vit_jax/core/__init__.py vit_jax/core/
RUN pip install --no-cache-dir --constraint constraints.txt --editable ".[${EXTRAS}]"
COPY . .
RUN pip install --no-cache-dir --no-deps --editable . && vit-jax --help
CMD ["vit-jax", "--help"]
