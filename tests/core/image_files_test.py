from PIL import Image

from vit_jax.core.image_files import EXTENSIONS, FORMATS, OF_TRAINING, OPENED, is_image_name


def test_pillow_knows_the_extensions_of_each_format():
    Image.init()
    registered = Image.registered_extensions()
    for name, extensions in FORMATS.items():
        for one in extensions:
            # Multi-picture JPEGs are named as JPEGs; Pillow knows a BMP without its head apart.
            assert registered[one] in {name, "JPEG", "BMP", "DIB"}, one
    assert Image.OPEN.keys() >= set(OPENED)
    assert set(OF_TRAINING) <= FORMATS.keys()
    assert {".jfif", ".tif", ".jpe"} <= set(EXTENSIONS)


def test_names_of_images():
    for name in ("a.JPG", "a.b.jfif", "x.TIFF", "ä.jp2"):
        assert is_image_name(name), name
    for name in (".a.jpg", "._a.jpg", ".DS_Store", "Thumbs.db", "a.txt", "jpg", "__MACOSX"):
        assert not is_image_name(name), name
