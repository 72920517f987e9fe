import base64
import re

from PIL import Image

from tests.tools.look.report.page_test import Outline, text_of


def test_pictures_of_some_steps_are_on_the_page(make_workdir):
    folder = make_workdir("a", {10: {"train/loss": 2.0}})
    place = folder / "pictures" / "look" / "<filters>"
    place.mkdir(parents=True)
    for step in (10, 20, 30, 40, 100):
        Image.new("RGB", (2, 2), (step, 0, 0)).save(place / f"{step}.png")
    (place / "x.png").write_text("not a step")
    text = text_of(folder)
    assert Outline(text).open == []
    assert "look/&lt;filters&gt;" in text and "5 steps" in text
    shown = re.findall(r'<img src="data:image/png;base64,(.*?)" alt="(.*?)">', text)
    assert [step for _, step in shown] == ["step 10", "step 30", "step 100"]
    assert base64.b64decode(shown[-1][0]) == (place / "100.png").read_bytes()
