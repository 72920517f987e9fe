"""vit-jax COMMAND ...: every command by one program; python -m vit_jax COMMAND is the same.

Nothing else is imported before the command is known: JAX takes seconds.
"""

import runpy
import sys

from vit_jax import namesake
from vit_jax.core import signals

try:
    from vit_jax import __version__
except ImportError:  # their __init__.py lies over ours
    raise SystemExit(f"error: {namesake.MIXED}") from None

# The module in vit_jax, and the sentence of --help.
COMMANDS = {
    "convert": ("convert", "Converts weights from one format to another."),
    "demo": ("tools.demo", "Serves a page that explains a model's predictions."),
    "embed": ("embed", "Computes features of images."),
    "evaluate": ("evaluate", "Evaluates checkpoints on a data set."),
    "export": ("tools.export", "Exports a model to ONNX, LiteRT, StableHLO or Hugging Face."),
    "find_lr": ("tools.lab.find_lr", "Suggests a learning rate."),
    "info": ("run.info", "Describes a run: its best step, its speed; or weights, or this machine."),
    "models": ("models", "Lists all models."),
    "neighbours": ("tools.look.neighbours", "Finds similar images and duplicates."),
    "plan": ("tools.plan", "Estimates memory, time and cost of a run."),
    "predict": ("predict", "Classifies images."),
    "prepare": ("tools.prepare", "Prepares a data set from raw images."),
    "preview": ("tools.look.preview", "Draws the images of a training step."),
    "report": ("tools.look.report", "Plots the metrics of runs on one page."),
    "soup": ("evaluate.soup", "Averages the weights of checkpoints."),
    "study": ("tools.lab.study.run", "Trains models of several sizes and fits scaling laws."),
    "sweep": ("tools.lab.sweep.run", "Trains a grid of configs."),
    "train": ("train", "Trains a model."),
    "transfer": ("tools.lab.transfer.run", "Fine-tunes a model with tuned hyperparameters."),
    "verify": ("tools.verify", "Compares a run with recorded runs of its config."),
    "visualize": ("tools.look.visualize", "Visualizes filters, attention and features of a model."),
    "vtab": ("tools.lab.vtab.run", "Fine-tunes a model on the 19 tasks of VTAB-1k."),
}


def main() -> None:
    """Replaces the command's name in sys.argv by its module, and runs that."""
    signals.end_at_signals()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        from vit_jax.core import command

        command.call_as(f"vit-jax {name}")
        del sys.argv[1]
        runpy.run_module(f"vit_jax.{COMMANDS[name][0]}", run_name="__main__", alter_sys=True)
    elif name in ("--help", "-h", "help"):
        print("vit-jax COMMAND ...; vit-jax COMMAND --help lists its flags.\n")
        for command_name, (_, does) in COMMANDS.items():
            print(f"  {command_name:10}  {does}")
    elif name == "--version":
        print(f"vit_jax {__version__}")
    else:
        from vit_jax.core import errors

        print(f"error: No command {name}. {errors.nearest(name, COMMANDS)}", file=sys.stderr)
        raise SystemExit(errors.EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
