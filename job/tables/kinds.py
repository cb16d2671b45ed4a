"""The kinds of values that a job's tables have: words of a list, counts, code, files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

_CODE = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


def choice(
    *allowed: str, later: tuple[str, ...] = (), never: Mapping[str, str] | None = None, code: bool = False
) -> BeforeValidator:
    """A validator for one word of ``allowed``. Words of ``later`` (``x*``: any word that begins with x) are refused as
    "not yet", words of ``never`` with their reason. ``code``: a function of a module, "package.module:function", is
    allowed too."""

    words = ", ".join(allowed) + (' or a function, "package.module:function"' if code else "")

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value in allowed or (code and re.fullmatch(_CODE, value)):
            return value
        if never and value in never:
            context = {"value": repr(value), "reason": never[value], "allowed": words}
            raise PydanticCustomError("choice", "{value} {reason}; allowed: {allowed}", context)
        for word in later:
            if value == word or (word.endswith("*") and value.startswith(word[:-1])):
                message = "not yet: {value} is not supported by this version; allowed now: {allowed}"
                raise PydanticCustomError("not_yet", message, {"value": repr(value), "allowed": words})
        near = difflib.get_close_matches(value, allowed, 1, 0.5)
        nearest = f"; did you mean {near[0]!r}?" if near else ""
        message = "{value} is not one of {allowed}{nearest}"
        context = {"value": repr(value), "allowed": words, "nearest": nearest}
        raise PydanticCustomError("choice", message, context)

    return BeforeValidator(check)


def parsed_by(parse: Callable[[str], object]) -> BeforeValidator:
    """A validator for texts that ``parse`` accepts; the message of its ValueError is shown for others."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            try:
                parse(value)
            except ValueError as error:
                raise PydanticCustomError("choice", "{problem}", {"problem": str(error)}) from None
        return value

    return BeforeValidator(check)


def listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Count = Annotated[int, Field(ge=1)]


Code = Annotated[str, Field(pattern=f"^{_CODE}$")]


Files = Annotated[list[str], BeforeValidator(listed), Field(min_length=1)]


class Table(BaseModel):
    """A table of the job file: no unknown keys, no silent conversions (``"4"`` is not 4), not changed after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
