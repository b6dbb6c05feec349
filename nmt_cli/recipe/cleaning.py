"""The settings of corpus cleaning: which lines to repair, and which pairs to drop."""

from typing import Annotated, Literal

from pydantic import Field

from nmt_cli.recipe.section import UNPUBLISHED, Section, Share


class Cleaning(Section):  # no setting keeps held-out pairs in the training text
    unescape: bool = Field(True, description="decode HTML entities once (&amp; -> &)")
    max_tokens: Annotated[int | None, UNPUBLISHED] = Field(
        250, ge=1, description="maximum length of either side in subwords; longer pairs are dropped"
    )
    max_ratio: Annotated[float | None, UNPUBLISHED] = Field(
        9.0, ge=1, description="maximum ratio of the two lengths in subwords (9 as in Moses)"
    )
    drop_copies: bool = Field(True, description="drop pairs whose source equals their target")
    drop_duplicates: bool = Field(
        True, description="drop repeated pairs; the pairs of a file that is listed twice are kept twice"
    )
    drop_near_twins: bool = Field(False, description="drop pairs with a side that nearly equals a held-out line")
    check_script: bool = Field(True, description="drop pairs with a side mostly in a script foreign to its language")


class Filters(Section):  # these filters are off by default; recipes/README.md shows their measured effect
    language: bool = Field(False, description="drop pairs with a side that is surely in another language")
    swapped: Literal["keep", "drop", "turn"] = Field(
        "keep", description="treatment of pairs whose two languages are swapped"
    )
    numbers: bool = Field(
        False, description="drop pairs if each side has a digit that the other lacks or has less often"
    )
    repeats: bool = Field(False, description="drop pairs with a phrase of up to six words four times in a row")
    min_letters: Share = Field(0, description="minimum share of letters in a side, spaces not counted")
    max_capitals: Share = Field(1, description="maximum share of capitals in a side of at least ten letters")
