"""Bad tars and folders."""

import gzip
import os
import tarfile

from tests.tools.prepare.conftest import jpeg

GOOD = {"good.jpg": jpeg(0)}
END = bytes(10240)


def header(name="bad.jpg", *, kind=tarfile.REGTYPE, **fields):
    """One header block of a tar."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def with_size(block, size):
    """The header with any size, even a negative one."""
    field = b"\xff" if size < 0 else b"\x80"
    changed = block[:124] + field + size.to_bytes(11, "big", signed=True) + block[136:]
    total = 256 + sum(changed[:148]) + sum(changed[156:])
    return changed[:148] + b"%06o\0 " % total + changed[156:]


def padded(data):
    return data + bytes(-len(data) % 512)


def good():
    """A member without the end-of-archive marker."""
    ((name, data),) = GOOD.items()
    return header(name, size=len(data)) + padded(data)


def pax(**records):
    """A PAX header with these records."""
    lines = b""
    for key, value in records.items():
        body = f" {key.replace('__', '.')}={value}\n".encode()
        length = len(body) + len(str(len(body) + 2))
        lines += str(length).encode() + body
    return header("pax", kind=tarfile.XHDTYPE, size=len(lines)) + padded(lines)


WHOLE = good() + END
DAMAGED = "error: .*a.tar cannot be read: "

# Fault -> (the tar, the outcome: an error, or why one of two members was set aside).
TARS = {
    "empty": (b"", DAMAGED),
    "no tar": (jpeg(0), DAMAGED),
    "text": (b"<html>" * 1000, DAMAGED),
    "only zeros": (END, "error: .*the 0 images that are left"),
    "compressed by bzip2": (b"BZh9" + bytes(100), "error: .*bzip2 -d"),
    "compressed by xz": (b"\xfd7zXZ\0" + bytes(100), "error: .*xz -d"),
    "half of gzip": (gzip.compress(WHOLE)[:-200], DAMAGED),
    "garbage in gzip": (b"\x1f\x8b" + b"x" * 1000, DAMAGED),
    "ends inside a member": (WHOLE[:700], DAMAGED),
    "ends inside a header": (good() + header()[:100], DAMAGED),
    "ends between members": (good(), DAMAGED),
    "ends after a header": (good() + header(size=10), DAMAGED),
    "two tars in one": (WHOLE + WHOLE, DAMAGED + ".*behind its end mark"),
    "two tars in one of gzip": (gzip.compress(WHOLE) * 2, DAMAGED + ".*behind its end mark"),
    "much padding": (WHOLE + bytes(3 * 2**20), ""),
    "a damaged header": (good() + b"x" * 512 + END, DAMAGED),
    "a wrong checksum": (good() + header()[:-1] + b"x" + END, DAMAGED),
    "a member of an exabyte": (good() + with_size(header(), 2**60) + END, DAMAGED),
    "a member of 8 GiB": (good() + with_size(header(), 2**33) + END, DAMAGED),
    "a negative size": (good() + with_size(header(), -1024) + END, DAMAGED),
    "a negative size in PAX": (good() + pax(size="-1024") + header() + END, DAMAGED),
    "no number in PAX": (good() + pax(size="many") + header(size=0) + END, "empty"),
    "a PAX header of 8 GiB": (
        good() + with_size(header(kind=tarfile.XHDTYPE), 2**33) + END, DAMAGED
    ),
    "a name of 8 GiB": (
        good() + with_size(header(kind=tarfile.GNUTYPE_LONGNAME), 2**33) + END, DAMAGED
    ),
    "ten thousand headers of one member": (good() + pax(a="b") * 10_000 + header() + END, DAMAGED),
    "a path upwards": (good() + header("../bad.jpg") + END, "outside"),
    "a path upwards inside": (good() + header("a/../../bad.jpg") + END, "outside"),
    "an absolute path": (good() + header("/etc/bad.jpg") + END, "outside"),
    "an absolute path in PAX": (good() + pax(path="/bad.jpg") + header() + END, "outside"),
    "a path of Windows": (good() + header("C:\\bad.jpg") + END, "outside"),
    "a name that is not UTF-8": (
        good() + header("b\udcff.jpg") + END, "unsafe_name"
    ),
    "a link": (good() + header(kind=tarfile.SYMTYPE, linkname="/etc/passwd") + END, "no_file"),
    "a hard link": (good() + header(kind=tarfile.LNKTYPE, linkname="good.jpg") + END, "no_file"),
    "a device": (good() + header(kind=tarfile.CHRTYPE, devmajor=1, devminor=5) + END, "no_file"),
    "a pipe": (good() + header(kind=tarfile.FIFOTYPE) + END, "no_file"),
    "a sparse file of PAX": (
        good() + pax(GNU__sparse__major="1", GNU__sparse__minor="0", GNU__sparse__realsize="9")
        + header(size=512) + padded(b"1\n0\n9\n") + END,
        "no_file",
    ),
    "an endless list of holes": (
        good() + pax(GNU__sparse__major="1", GNU__sparse__minor="0")
        + header(size=512) + padded(b"9999999999\n") + END,
        "no_file",
    ),
    "no bytes": (good() + header(size=0) + END, "empty"),
    "the same name": (good() + good() + END, "same_name"),
    "a folder with the name of an image": (good() + header(kind=tarfile.DIRTYPE) + END, ""),
}  # fmt: skip


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)


def image(folder, name):
    """An image in a folder with this name, which may be no text."""
    (folder / name).mkdir(parents=True)
    (folder / name / "bad.jpg").write_bytes(jpeg(1))


def circle(folder):
    (folder.parent / "loop").symlink_to(folder.parent / "loop")
    (folder / "again").symlink_to(folder.parent)


BAD, NO_CLASS = "bad.jpg", "error: .*one line of UTF-8"
# Fault -> (a function that adds it to a class folder with one good image, the outcome).
FOLDERS = {
    "a link in a circle": (lambda folder: (folder / BAD).symlink_to(folder / BAD), "no_file"),
    "a broken link": (lambda folder: (folder / BAD).symlink_to(folder / "nowhere"), "no_file"),
    "a pipe": (lambda folder: os.mkfifo(folder / BAD), "no_file"),
    "a name that is not UTF-8": (
        lambda folder: (folder / "b\udcff.jpg").write_bytes(jpeg(1)), "unsafe_name"
    ),
    "a file of a tebibyte": (lambda folder: sparse(folder / BAD, 2**40), "too_large"),
    "folders in a circle": (circle, "nested,no_file"),
    "a split with a space": (
        lambda folder: (folder.parent / "my split" / "thing").mkdir(parents=True),
        "error: .*'my split'",
    ),
    "a folder beside images": (
        lambda folder: image(folder.parent, "other/more"),
        "error: .*'thing/good.jpg'",
    ),
    **{
        f"the class {name!a}": (lambda folder, name=name: image(folder.parent, name), NO_CLASS)
        for name in ("c\udcff", "  ", " thing", "thing ", "a\nb", "thing\n", "a\u2028b")
    },
}  # fmt: skip
