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

# What each does, and its module in vit_jax.
COMMANDS = {
    "convert": ("convert", "Converts weights from one format to another."),
    "demo": ("tools.demo", "Says on a page what a model sees in an image."),
    "embed": ("embed", "Writes features of images to a table."),
    "evaluate": ("evaluate", "Evaluates checkpoints on any data."),
    "export": ("tools.export", "Writes a model for use without this package."),
    "find_lr": ("tools.lab.find_lr", "Looks for a learning rate."),
    "info": ("run.info", "Prints what a report of a problem needs."),
    "models": ("models", "Prints the table of all models."),
    "neighbours": ("tools.look.neighbours", "Finds similar images and duplicates by features."),
    "plan": ("tools.plan", "Says memory, time and cost of a run before it is started."),
    "predict": ("predict", "Classifies images."),
    "prepare": ("tools.prepare", "Turns raw collections of images into data sets."),
    "preview": ("tools.look.preview", "Shows the images of a training step."),
    "report": ("tools.look.report", "Draws runs on one page."),
    "soup": ("evaluate.soup", "Averages the weights of steps or runs."),
    "study": ("tools.lab.study.run", "Trains models of several sizes and fits scaling laws."),
    "sweep": ("tools.lab.sweep.run", "Trains a grid of configs."),
    "train": ("train", "Trains a model."),
    "transfer": (
        "tools.lab.transfer.run",
        "Fine-tunes a model, with values that are chosen on held-out examples.",
    ),
    "verify": ("tools.verify", "Compares a run with the recorded one of its config."),
    "visualize": ("tools.look.visualize", "Shows what a model has learnt."),
    "vtab": ("tools.lab.vtab.run", "Runs the 19 tasks of VTAB-1k."),
}


def main() -> None:
    """The program: replaces the command's name in sys.argv by its module, and runs that."""
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
