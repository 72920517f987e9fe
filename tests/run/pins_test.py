import json

from etils import epath

from vit_jax import config as configs
from vit_jax.cluster.peers import Peers
from vit_jax.run.parts import pins


def test_a_resumed_run_takes_the_commit_it_began_with(tmp_path):
    config = configs.resolve({"init": {"weights": "hf:timm/toy@v1"}}, [])
    pin = f"hf:timm/toy@{'a' * 40}"
    runs = [{}, {"weights": {"hf:timm/toy@v1": pin}}]
    document = {"config": {}, "fingerprint": {}, "runs": runs}
    (tmp_path / "config.json").write_text(json.dumps(document))
    pinned = pins.pin_weights(config, epath.Path(tmp_path), Peers.alone())
    assert pinned.init.weights == pin
    assert pins.describe_pins(config, pinned) == {"weights": {"hf:timm/toy@v1": pin}}
