"""The table of evaluations: config.evals.<name>.kind."""

from vit_jax.core.schema import entry_points
from vit_jax.training.evals.classification import CLASSIFICATION, ClassificationConfig
from vit_jax.training.evals.frozen import FROZEN, FrozenConfig
from vit_jax.training.evals.kind import EvalConfig
from vit_jax.training.evals.pictures import PICTURES, PicturesConfig

KINDS: dict[str, type[EvalConfig]] = {
    CLASSIFICATION: ClassificationConfig,
    FROZEN: FrozenConfig,
    PICTURES: PicturesConfig,
}


def find(kind: str) -> type[EvalConfig]:
    """The dataclass of a kind's fields; what all kinds have if there is none of this name."""
    return KINDS.get(kind) or entry_points.find("evaluators", kind) or EvalConfig
