"""The errors that the toolkit raises on purpose.

Each says what happened, where, and why, then offers a next step.  Anything
else that escapes the library is a bug in it.
"""

from __future__ import annotations


class ToolkitError(Exception):
    """Base of the toolkit's errors.

    Args:
      message: what happened, where and why, with numbers and units.
      hint: the next step to try, printed after a blank line.
    """

    def __init__(self, message: str, *, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"

    def __reduce__(self):
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(cls: type[ToolkitError], message: str, hint: str | None) -> ToolkitError:
    return cls(message, hint=hint)


class CaptureError(ToolkitError):
    """A kernel could not be captured."""


class PassPipelineError(ToolkitError):
    """A pipeline's text is malformed or names what is unknown, or a pass does not load or has a bug."""


class Refused(ToolkitError):
    """A rewrite is illegal for this kernel; nothing was changed."""


class InvalidModule(ToolkitError):
    """A module, or a file that should hold one, does not parse or verify."""


class Unsupported(ToolkitError):
    """The toolkit has no meaning for something in the input."""


class Mismatch(ToolkitError):
    """Two things that should agree do not."""


class CompileError(ToolkitError):
    """A compiler refused, crashed, or ran over its limits."""


def first_error(text: str) -> str:
    """The line of what MLIR says that names the error, else its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return (errors or lines or ["no message"])[0].removeprefix("error: ")
