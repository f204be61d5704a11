"""Small pictures inside pages: PNG with few colours."""

import base64
import re
from io import BytesIO

from PIL import Image

_COLOURS = 192


def reduce_colours(png: bytes) -> bytes:
    """Return a picture with at most 192 colours, which takes half of the bytes."""
    image = Image.open(BytesIO(png)).convert("RGBA")
    stream = BytesIO()
    if image.getchannel("A").getextrema() == (255, 255):
        reduced = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    else:  # the one way that keeps what is transparent
        kind = Image.Quantize.FASTOCTREE
        reduced = image.quantize(_COLOURS, kind, dither=Image.Dither.NONE)
    reduced.save(stream, "png", optimize=True)
    return min(png, stream.getvalue(), key=len)


def shrink_svg(svg: bytes) -> bytes:
    """Return an SVG of Matplotlib with fewer colours in its pictures and digits in its paths."""

    def shorten(path: re.Match[bytes]) -> bytes:
        return re.sub(rb"(\.\d\d)\d+", rb"\1", path[0]).replace(b"\n", b"")

    def reduce(picture: re.Match[bytes]) -> bytes:
        png = reduce_colours(base64.b64decode(picture[1]))
        return b'"data:image/png;base64,' + base64.b64encode(png) + b'"'

    svg = re.sub(rb'"data:image/png;base64,([^"]*)"', reduce, svg)
    svg = re.sub(rb' (?:d|x|y)="[^"]*"', shorten, svg)
    svg = re.sub(rb"<!--.*?-->", b"", svg, flags=re.DOTALL)
    return re.sub(rb"\n\s*", b" ", svg)
