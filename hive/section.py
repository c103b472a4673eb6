"""What every table of the settings is made of.

By pydantic, which the project was given: a reader of our own would start some 60 ms sooner, and was refused.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of config.toml: frozen, unknown keys refused.

    A validator is built for those that are used alone; most are only read as a part of ``Settings``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)
