"""Names of image files: one list for training, evaluation, prediction and `prepare`."""

import collections
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


HIDDEN = "hidden, by a dot before the name"  # reasons
IN_HIDDEN = "in hidden folders, or those of an operating system"
NOT_NAMED = "without the extension of an image"
NO_FILE = "not regular files (pipes, or links to nothing)"


class PassedOver:
    """Files of a folder that are not read, by the reason."""

    def __init__(self) -> None:
        self._paths: dict[str, list[str]] = collections.defaultdict(list)

    def add_named(self, path: str) -> None:
        """Adds a file, unless it is an operating system's, by the reason that its name gives."""
        name = PurePath(path).name
        if is_hidden(name):
            if extension(name) in (*EXTENSIONS, *UNKNOWN_EXTENSIONS):
                self.add(HIDDEN, path)
        elif extension(name) in UNKNOWN_EXTENSIONS:
            kind = f"in the format {extension(name)}, which is not read (convert to JPEG or PNG)"
            self.add(kind, path)
        else:
            self.add(NOT_NAMED, path)

    def add(self, reason: str, *paths: str) -> None:
        """`reason` follows on "passed over 3 files: "."""
        if paths:
            self._paths[reason] += paths

    def clear(self) -> None:
        """Forgets them, before a folder is read in another way."""
        self._paths.clear()

    def notes(self) -> tuple[str, ...]:
        """A line for each reason: how many files, why, and an example."""
        return tuple(
            f"passed over {len(paths):,} file{'s' * (len(paths) > 1)}: {reason}, such as {paths[0]}"
            for reason, paths in self._paths.items()
        )
