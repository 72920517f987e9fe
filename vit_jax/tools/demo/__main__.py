"""Serves a page that explains a model's predictions for images that are dropped on it.

    vit-jax demo --checkpoint runs/digits

Ctrl-C ends it.
"""

import base64
import contextlib
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from vit_jax.core import command, compilation_cache, signals
from vit_jax.core.screen import Screen
from vit_jax.draw import html_page
from vit_jax.tools.demo import examples
from vit_jax.tools.demo.explainer import SMALL, Explainer
from vit_jax.tools.demo.server import MAX_BYTES, Server, Site

FLAGS = flags.FLAGS
ENDING_SECS = 10.0  # how long the end waits for the image that is being looked at


def render_page(explainer: Explainer, checkpoint: str, samples: Sequence[examples.Sample]) -> str:
    """The page, which needs nothing but the server's answers."""
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    return html_page.render(
        "tools/demo/page.html",
        title="What does it see?",
        subtitle=f"A model that knows {explainer.num_classes:,} classes of images looks at yours.",
        model=explainer.name,
        checkpoint=checkpoint,
        num_classes=explainer.num_classes,
        kind=explainer.kind,
        size=explainer.image_size,
        smallest=SMALL,
        max_bytes=MAX_BYTES,
        accept=explainer.accept,
        examples=[(each.name, explainer.thumbnail_url(each.data)) for each in samples],
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def main(_: list[str]) -> None:
    with Server(FLAGS.host, FLAGS.port) as server:
        if server.is_public:
            print(
                f"warning: --host={FLAGS.host} lets everybody use this model who reaches port "
                f"{server.server_port} of this machine: there is no password and no encryption.",
                file=sys.stderr,
            )
        compilation_cache.use()
        explainer = Explainer(FLAGS.checkpoint, ema=FLAGS.ema, top_k=FLAGS.top_k)
        samples = examples.find(FLAGS.examples, FLAGS.checkpoint)
        page = render_page(explainer, FLAGS.checkpoint, samples)
        server.site = Site(page, samples, explainer)
        explainer.compile()
        screen = Screen()
        screen.say(f"model    {explainer.name}, {explainer.num_classes:,} classes")
        screen.say(f"open     {server.url} (Ctrl-C ends the demo)")
        with signals.exit_immediately_on_signal("the demo"), contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
        # A computation that is under way at exit would end the process with an error.
        explainer.one_at_a_time.acquire(timeout=ENDING_SECS)


if __name__ == "__main__":
    command.define_checkpoint()
    flags.DEFINE_string("host", "127.0.0.1", "Address to answer at; 0.0.0.0 lets everybody in.")
    flags.DEFINE_integer("port", 8080, "Port to answer at; 0: any.", 0, 65535)
    flags.DEFINE_integer("top_k", 5, "Number of classes to show for an image.", lower_bound=1)
    flags.DEFINE_bool("ema", False, "Use the EMA of the weights, where the run kept one.")
    flags.DEFINE_multi_string("examples", [], "Images, or folders, to try; default: the run's own.")
    flags.mark_flag_as_required("checkpoint")
    command.run(main)
