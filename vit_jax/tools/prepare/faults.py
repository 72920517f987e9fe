"""Faults that an image can have, and the actions that a policy takes for them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vit_jax.core.errors import UserError, nearest

ACTIONS = KEEP, CONVERT, SET_ASIDE = "keep", "convert", "set_aside"


class Fault(NamedTuple):
    """A kind of fault."""

    what: str  # in messages and reports
    action: str = SET_ASIDE  # the default
    choices: tuple[str, ...] = ()  # other possible actions


FAULTS: dict[str, Fault] = {
    "unsafe_name": Fault("the name is not UTF-8, or has a zero in it"),
    "outside": Fault("the path leads out of the archive, of the list's folder or of --images_root"),
    "no_file": Fault("a link to nothing or in an archive, a pipe or a device, not a file"),
    "hidden": Fault(
        "its name, or that of a folder that it is in, begins with a dot, or is of an operating "
        "system: __MACOSX, Thumbs.db"
    ),
    "nested": Fault("in a folder inside that of a class"),
    "beside_classes": Fault("beside the folders of the classes, not in one"),
    "missing": Fault("a list names a file that is not there"),
    "bad_entry": Fault("a line or row of a list that names no image"),
    "no_image": Fault("a sample without an image"),
    "other_image": Fault("its sample has an image before it, which is the one that counts"),
    "dotted_name": Fault(
        "its name has a further dot, and WebDataset ends the name of a sample at the first one: it "
        "is a part of a sample that has no image; put another character in the place of the dot"
    ),
    "same_member": Fault("another member before it in the sample has the same name"),
    "bad_label": Fault(
        "a label that is not a class or is there twice, or a weight outside of 0 to 1"
    ),
    "no_label": Fault("nothing says of which class it is"),
    "same_name": Fault("another image before it has the same name"),
    "empty": Fault("no bytes"),
    "unreadable": Fault("not an image, or its header is damaged"),
    "too_large": Fault("more pixels than --max_image_pixels, or a file of more than 256 MiB"),
    "truncated": Fault("the file ends too early, or its pixels are damaged"),
    "unknown_range": Fault(
        "pixels whose range is not known: floats, integers of 32 bits, or signed ones"
    ),
    "other_format": Fault(
        "of a format that training does not read: a TIFF, a BMP with a palette, an animated WebP",
        CONVERT,
        (SET_ASIDE,),
    ),
    "rotated": Fault("EXIF says that it has to be turned", KEEP, (CONVERT, SET_ASIDE)),
    "cmyk": Fault("for print: CMYK", KEEP, (CONVERT, SET_ASIDE)),
    "gray": Fault("shades of gray alone", KEEP, (CONVERT, SET_ASIDE)),
    "animated": Fault("several images in one file, of which the first counts", KEEP, (SET_ASIDE,)),
    "wrong_extension": Fault("named as another format than it is", KEEP, (SET_ASIDE,)),
}

Policy = Mapping[str, str]  # fault -> action


def policy(choices: Sequence[str], defaults: Policy) -> Policy:
    """Fault -> action: from `choices` ("gray:set_aside"), else `defaults`, else FAULTS.

    UserError for an unknown fault, or an action that is not possible for it.
    """
    chosen = {name: fault.action for name, fault in FAULTS.items()} | dict(defaults)
    for choice in choices:
        name, _, action = choice.partition(":")
        if name not in FAULTS:
            raise UserError(f"--policy={choice}: no such fault. {nearest(name, FAULTS)}")
        possible = (FAULTS[name].action, *FAULTS[name].choices)
        if action not in possible:
            raise UserError(
                f"--policy={choice}: {name} ({FAULTS[name].what}) can be {' or '.join(possible)}."
            )
        chosen[name] = action
    return chosen
