"""Pictures become smaller and stay what they are."""

import base64
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from pinfactory.experiments.png import reduce_colours, shrink_svg


def png(pixels):
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


@pytest.mark.parametrize("alpha", [255, 0])
def test_a_picture_keeps_its_colours_nearly_and_what_is_transparent(alpha):
    x, y = np.meshgrid(np.arange(120), np.arange(80))
    waves = [127 + 100 * np.sin(x * y / k) for k in (300, 500, 900)]
    pixels = np.stack([*waves, 255 + 0 * x], axis=-1).astype(np.uint8)
    pixels[:10, :, 3] = alpha
    before = png(pixels)
    after = reduce_colours(before)
    assert len(after) < len(before)
    shown = np.asarray(Image.open(BytesIO(after)).convert("RGBA")).astype(int)
    np.testing.assert_array_equal(shown[..., 3], pixels[..., 3])
    assert np.abs(shown - pixels)[10:].mean() < 12


def test_an_svg_keeps_its_words_and_holds_valid_pictures():
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    axes.imshow(np.random.default_rng(0).random((50, 50)))
    axes.plot(np.linspace(0, 50, 400), 25 + 20 * np.sin(np.linspace(0, 9, 400)))
    stream = BytesIO()
    figure.savefig(stream, format="svg")
    svg = shrink_svg(stream.getvalue())
    assert len(svg) < len(stream.getvalue())
    picture = svg.split(b"data:image/png;base64,")[1].split(b'"')[0]
    assert Image.open(BytesIO(base64.b64decode(picture))).size[0] > 10
    assert svg.startswith(b"<?xml")
    assert svg.rstrip().endswith(b"</svg>")
