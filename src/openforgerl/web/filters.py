"""Numbers and texts as the templates print them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from markupsafe import Markup

from openforgerl.web.visible import visible

THIN = "\u202f"
MINUS = "\u2212"


def finalize(value: object) -> object:
    """Every text that is not our own markup shows its hidden characters; jinja escapes it after this."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value)


def count(value: float) -> str:
    """8225 -> 8 225, with narrow spaces."""
    return f"{value:,.0f}".replace(",", THIN)


def plural(value: int, noun: str) -> str:
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def reward(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", MINUS)


def change(value: float) -> str:
    """With its sign."""
    return f"{value:+.2f}".replace("-", MINUS)


def percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{100 * share:.1f}%"


def duration(seconds: float) -> str:
    """83.2 -> 1 min 23 s."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{seconds:.1f} s"


def number(value: float | None) -> str:
    """Three significant digits; whole numbers as they are."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return count(value).replace("-", MINUS)
    return f"{value:.3g}".replace("-", MINUS)


def slug(name: str) -> str:
    """As a part of a class name."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower())


FILTERS: dict[str, Callable[..., str]] = {
    "count": count, "reward": reward, "change": change, "percent": percent, "duration": duration, "number": number,
    "slug": slug, "plural": plural,
}  # fmt: skip
