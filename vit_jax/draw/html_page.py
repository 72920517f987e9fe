"""A page of HTML that needs nothing else, neither a network nor other files."""

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path


def document(
    title: str, body: Sequence[str], *, program: str, subtitle: str, css: str, policy: str
) -> str:
    """The text of a file, of texts that are escaped; empty parts of `body` are left out.

    `program` is the command that writes it, `css` rules after those of page.css, and `policy` what
    the page may use besides its styles; the browser itself refuses the rest.
    """
    shared = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; {policy}"
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title} – vit_jax {program}</title>",
        f"<style>\n{shared}{css}</style></head>",
        f"<body><header><h1>{title}</h1>",
        f"<p>{subtitle}</p></header>",
    ]
    return lines([*head, *body]) + "</body></html>\n"


def image_url(data: bytes, ending: str) -> str:
    """The bytes of an image file as a data: URL; ending: png, gif, jpeg or webp."""
    return f"data:image/{ending};base64,{base64.b64encode(data).decode()}"


def lines(parts: Iterable[str]) -> str:
    """The parts that are not empty, one a line."""
    return "\n".join(part for part in parts if part)
