"""Names of image files: one list for training, evaluation, prediction and `prepare`."""

from pathlib import PurePath

# By the format as Pillow names it; the first extension is the usual one. No other formats are
# decoded: for EPS Pillow would start a program, and some of its plugins are hardly used.
FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".mpo", ".jpg", ".jpeg"),  # a JPEG with further images behind it
    "PNG": (".png", ".apng"),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "BMP": (".bmp", ".dib"),
    "DIB": (".dib",),
    "TIFF": (".tif", ".tiff"),
    "AVIF": (".avif", ".avifs"),
    "JPEG2000": (".jp2", ".j2k", ".jpf", ".jpx", ".j2c", ".jpc"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
# For Image.open, to which an MPO is a JPEG.
OPENED = tuple(name for name in FORMATS if name != "MPO")
# What TensorFlow decodes, which training and evaluation read as they are. `prepare` makes JPEGs and
# PNGs of the others.
OF_TRAINING = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP")

EXTENSIONS = tuple(dict.fromkeys(one for group in FORMATS.values() for one in group))
TRAINING_EXTENSIONS = tuple(dict.fromkeys(one for name in OF_TRAINING for one in FORMATS[name]))
# Images that nothing here decodes: they are named, not passed over as other files are.
UNKNOWN_EXTENSIONS = (".heic", ".heif", ".jxl", ".psd", ".svg", ".eps", ".ico", ".tga", ".dng")

# Files and folders that operating systems put among others', in lower case.
_OF_SYSTEMS = ("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin")


def extension(name: str) -> str:
    """The extension of a file's name in lower case, with its dot; "" if there is none."""
    return PurePath(name).suffix.lower()


def is_image_name(name: str) -> bool:
    """Whether a file of this name is an image that can be decoded, and is not hidden."""
    return extension(name) in EXTENSIONS and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Whether a file or a folder is not the user's own: hidden, or of an operating system."""
    return name.startswith(".") or name.lower() in _OF_SYSTEMS
