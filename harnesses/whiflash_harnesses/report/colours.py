"""One colour per name (an arm, a drafter, a phase), the same in every chart and on every page."""

from colorsys import hls_to_rgb
from zlib import crc32

PALETTE = (
    ("107 107 102", "154 154 148"),  # grey
    ("42 112 204", "88 152 238"),  # blue
    ("222 98 38", "236 128 74"),  # orange
    ("22 150 102", "44 182 130"),  # green
    ("100 72 190", "156 134 236"),  # violet
    ("205 74 134", "226 118 166"),  # magenta
    ("196 140 0", "222 172 48"),  # gold
    ("0 128 140", "52 172 184"),  # teal
)
"""Red, green and blue on a light and on a dark page; the page's style sheet has them as ``--c0``, ``--c1``, …"""

_SLOTS = {
    "off": 0,
    "none": 0,
    "eagle3": 1,
    "dflash": 2,
    "ngram": 3,
    "entropy": 4,
    "neural": 5,
    "cost": 6,
    "overhead": 0,
    "verify": 7,
    "router": 4,
    "catch-up": 5,
    "draft": 6,
}


def colour(name: str) -> str:
    """Return the CSS colour channels of ``name``, for ``rgb(… / alpha)``.

    A name without a place in the palette gets a hue made from its letters, readable on light and dark.
    """
    if name in _SLOTS:
        return f"var(--c{_SLOTS[name]})"
    channels = hls_to_rgb(crc32(name.encode()) % 360 / 360, 0.5, 0.45)
    return " ".join(str(round(255 * channel)) for channel in channels)
