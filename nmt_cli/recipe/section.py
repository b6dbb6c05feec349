"""The base of all sections of a recipe, and the policies of their settings."""

import enum
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Share = Annotated[float, Field(ge=0, le=1)]


class Policy(enum.Flag):
    """Exceptions for a setting when recipes are compared. The policy of a section applies to all its settings."""

    MAY_CHANGE = enum.auto()  # a resumed run may change the setting, because it does not affect the trained weights
    UNPUBLISHED = enum.auto()  # the paper does not report the setting
    LOCAL = enum.auto()  # the value, such as a path, may differ between the machines of a run
    TRAINED = enum.auto()  # a corpus setting for training, which `prepare` ignores. It must be the same on all machines


NO_POLICY = Policy(0)
MAY_CHANGE, UNPUBLISHED, LOCAL, TRAINED = Policy
OPERATION = MAY_CHANGE | UNPUBLISHED  # for settings that affect only how a run is computed and displayed


class Section(BaseModel):
    """A group of settings. `section.model_copy(update={...})` returns a changed copy without validating it."""

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
