"""The base of all sections of a recipe, and the policies of their settings."""

import enum
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Share = Annotated[float, Field(ge=0, le=1)]


class Policy(enum.Flag):
    """How comparisons of recipes treat a setting. The policy of a section also applies to all its settings."""

    MAY_CHANGE = enum.auto()  # a resumed run may change the setting, because earlier steps do not depend on it
    UNPUBLISHED = enum.auto()  # "Attention Is All You Need" does not report the setting
    LOCAL = enum.auto()  # the value, such as a path, may differ between the machines of a run
    TRAINED = enum.auto()  # only training uses this corpus setting; LOCAL does not apply to it


NO_POLICY = Policy(0)
MAY_CHANGE, UNPUBLISHED, LOCAL, TRAINED = Policy
OPERATION = MAY_CHANGE | UNPUBLISHED  # the setting affects only how a run is computed or displayed


class Section(BaseModel):
    """A group of settings. `section.model_copy(update={...})` returns a copy with unvalidated changes."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        hint: Any = cls.model_fields[str(info.field_name)].annotation
        is_list, is_section = get_origin(hint) is list, isinstance(hint, type) and issubclass(hint, Section)
        if value is None or (isinstance(value, str) and value.lower() in ("", "~", "null", "none")):
            if type(None) in get_args(hint):
                return None
            if is_list:
                return []
            return {} if is_section else value
        return [value] if is_list and not isinstance(value, list) else value
