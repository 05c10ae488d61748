"""How much of one text is rendered at a cost: code with colours, formulas as MathML.

The rest of it is shown plainly, so that no text takes long, however it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_CODE = 6_000
_MOST_FORMULAS = 30_000
_EACH_FORMULA = 50  # characters that the shortest formula takes as long as


@dataclass(slots=True)
class Allowance:
    """What is left for the rest of a text, by characters; what comes first has it first."""

    code: int = MOST_CODE
    formulas: int = _MOST_FORMULAS

    def takes_code(self, code: str) -> bool:
        """Whether this code is coloured, too; then less is left."""
        if len(code) > self.code:
            return False
        self.code -= len(code)
        return True

    def takes_formula(self, formula: str) -> bool:
        """Whether this formula is set, too; then less is left."""
        if len(formula) + _EACH_FORMULA > self.formulas:
            return False
        self.formulas -= len(formula) + _EACH_FORMULA
        return True
