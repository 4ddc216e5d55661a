"""Decimals of a fixed number of digits, exactly: what fits, and the bytes that Avro has for it (Avro 1.12, Decimal).

The bytes are the number without its point, as a signed integer, the largest byte first.
"""

from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import NamedTuple


class Digits(NamedTuple):
    """The digits of a decimal: `precision` of them, `scale` of these behind the point."""

    precision: int
    scale: int

    def exact(self, value: Decimal | float | str) -> Decimal:
        """The value with `scale` digits behind the point.

        Raises:
            ValueError: it is no number, or it does not fit.
        """
        context = Context(prec=self.precision, traps=[Inexact, InvalidOperation])
        try:
            fitting = Decimal(value).quantize(Decimal((0, (1,), -self.scale)), context=context)
            if not fitting.is_finite():
                raise InvalidOperation(f"{value} is not a number")
            return fitting
        except (Inexact, InvalidOperation) as error:
            raise ValueError(
                f"{value} does not fit into {self.precision} digits, {self.scale} of them behind the point"
            ) from error

    def to_bytes(self, value: Decimal | float | str, size: int | None = None) -> bytes:
        """The bytes of a value: `size` of them, or as few as it takes.

        Raises:
            ValueError: it is no number, or it does not fit.
        """
        _sign, digits, _exponent = exact = self.exact(value).as_tuple()
        unscaled = int("".join(map(str, digits)))
        if exact.sign:
            unscaled = -unscaled
        try:
            return unscaled.to_bytes(unscaled.bit_length() // 8 + 1 if size is None else size, "big", signed=True)
        except OverflowError as error:
            raise ValueError(f"{value} does not fit into {size} bytes") from error


def from_bytes(data: bytes, scale: int) -> Decimal:
    """The decimal that Avro's bytes stand for, whatever the number of its digits."""
    return Decimal(f"{int.from_bytes(data, 'big', signed=True)}E-{scale}")
