"""A page on this machine that says what a model sees in an image that is dropped on it.

    vit-jax demo --checkpoint runs/digits

Ctrl-C ends it.
"""

import contextlib
import sys

from absl import flags

from vit_jax.core import command, compilation_cache, signals
from vit_jax.core.screen import Screen
from vit_jax.tools.demo import examples
from vit_jax.tools.demo.looker import Looker
from vit_jax.tools.demo.page import page
from vit_jax.tools.demo.server import Server, Site

FLAGS = flags.FLAGS
ENDING_SECS = 10.0  # how long the end waits for the image that is being looked at


def main(_: list[str]) -> None:
    """The command."""
    with Server(FLAGS.host, FLAGS.port) as server:
        if server.is_public:
            print(
                f"warning: --host={FLAGS.host} lets everybody use this model who reaches port "
                f"{server.server_port} of this machine: there is no password and no encryption.",
                file=sys.stderr,
            )
        compilation_cache.use()
        looker = Looker(FLAGS.checkpoint, ema=FLAGS.ema, top_k=FLAGS.top_k)
        found = examples.find(FLAGS.examples, FLAGS.checkpoint)
        server.site = Site(page(looker, FLAGS.checkpoint, found), found, looker)
        looker.compile()
        screen = Screen()
        screen.say(f"model    {looker.name}, {looker.num_classes:,} classes")
        screen.say(f"open     {server.url} (Ctrl-C ends the demo)")
        with signals.exit_immediately_on_signal("the demo"), contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
        # A computation that is under way at exit would end the process with an error.
        looker.one_at_a_time.acquire(timeout=ENDING_SECS)


if __name__ == "__main__":
    flags.DEFINE_string(
        "checkpoint", None, "Work directory, or a step's folder in it; or other weights."
    )
    flags.DEFINE_string(
        "host", "127.0.0.1", "Address to answer at; 0.0.0.0 lets everybody in who reaches it."
    )
    flags.DEFINE_integer(
        "port", 8080, "Port to answer at; 0: any.", lower_bound=0, upper_bound=65535
    )
    flags.DEFINE_integer("top_k", 5, "How many classes to show for an image.", lower_bound=1)
    flags.DEFINE_bool("ema", False, "The EMA of the weights, where the run kept one.")
    flags.DEFINE_multi_string(
        "examples", [], "Image, or folder of images, to try; default: some of the run's own data."
    )
    flags.mark_flag_as_required("checkpoint")
    command.run(main)
