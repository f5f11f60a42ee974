"""Numbers as a page shows them: powers of ten written as such, every bound rounded up.

The terminal and JSON keep 1e-05, which can be typed; so do the commands on a page.
"""

from __future__ import annotations

import re

from userdp.vocabulary import delta_up, round_up

_SCIENTIFIC = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?)e([+-]?)0*(\d+)(?![\w.]*\w)")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def in_powers(text: str) -> str:
    """``text`` with each number in scientific notation written with a power of ten.

    >>> in_powers("δ = 1e-05"), in_powers("up to 2.5e-06, or 1.00e+9.")
    ('δ = 10⁻⁵', 'up to 2.5·10⁻⁶, or 10⁹.')
    >>> in_powers("run-1e-05, 0x1e5, abc1e4")
    'run-1e-05, 0x1e5, abc1e4'
    """

    def shown(match: re.Match[str]) -> str:
        factor, sign, exponent = match.groups()
        power = "10" + (sign.removeprefix("+") + exponent).translate(_RAISED)
        return power if float(factor) == 1 else f"{factor}·{power}"

    return _SCIENTIFIC.sub(shown, text)


def epsilon_text(epsilon: float) -> str:
    """An ε with four decimals, rounded up.

    >>> epsilon_text(7.89396)
    '7.8940'
    """
    return round_up(epsilon)


def delta_text(delta: float, digits: int = 6) -> str:
    """A δ, rounded up.

    >>> delta_text(1e-05), delta_text(2.5e-6), delta_text(0.001)
    ('10⁻⁵', '2.5·10⁻⁶', '0.001')
    """
    return in_powers(delta_up(delta, digits))


def number_text(value: float, digits: int = 6) -> str:
    """Any other number, with at most so many significant digits.

    >>> number_text(3800), number_text(1 / 30), number_text(1e-05)
    ('3,800', '0.0333333', '10⁻⁵')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return in_powers(f"{value:.{digits}g}")
