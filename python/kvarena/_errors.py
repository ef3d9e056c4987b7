"""The failures of the library: one class for each status code, under `Error`."""

from typing import ClassVar

from kvarena._records import Explanation


class Error(Exception):
    """A call was refused or failed, and has changed nothing unless its documentation says so.

    `str` of it is one line for a person: what happened, the numbers, and what was expected. The numbers
    are fields, whose meaning depends on the class as the reference of error codes says.
    """

    code: ClassVar[str] = ""  #: the name of the status code

    def __init__(
        self,
        text: str = "",
        *,
        resource: str = "none",
        option: str = "",
        native: int = 0,
        subject: int = 0,
        required: int = 0,
        available: int = 0,
        explanation: Explanation | None = None,
        demand: int = -1,
    ) -> None:
        super().__init__(text)
        self.resource = resource  #: what the numbers are about, such as "block"
        self.option = option  #: the option that was refused or that sets the limit; "": none
        self.native = native  #: the number of the driver or of errno
        self.subject = subject  #: raw id, or refused value
        self.required = required  #: what was asked for, or the smallest accepted value
        self.available = available  #: what could be had, or the largest accepted value
        self.explanation = explanation  #: of refused blocks: who holds what
        self.demand = demand  #: the index of the refused demand of a step; -1: none


class InvalidArgument(Error, ValueError):
    """An argument or option is outside its range, `required` .. `available`."""

    code = "invalid_argument"


class Unsupported(Error):
    """Valid, but this build, device or kernel cannot do it."""

    code = "unsupported"


class DuplicateArgument(Error, ValueError):
    """The same object was named twice in one call."""

    code = "duplicate_argument"


class NotFound(Error):
    """There is no such sequence, holder, ticket, allocation or file."""

    code = "not_found"


class FailedPrecondition(Error):
    """The object is in a state that forbids the call."""

    code = "failed_precondition"


class Exhausted(Error):
    """A pool is empty: `required` was asked for, `available` could be had."""

    code = "exhausted"


class InsufficientVram(Error):
    """The device cannot provide that many bytes."""

    code = "insufficient_vram"


class ContextLengthExceeded(Error):
    """A sequence would grow past its maximum length."""

    code = "context_length_exceeded"


class DoubleRelease(Error):
    """A block reference was released that nobody holds."""

    code = "double_release"


class StaleHandle(Error):
    """The object of a handle, or the content of a block, is over."""

    code = "stale_handle"


class ReferenceUnderflow(Error):
    """A holder released more references than it took."""

    code = "reference_underflow"


class InvariantViolated(Error):
    """An integrity check failed."""

    code = "invariant_violated"


class DeviceError(Error):
    """The device or its driver reported `native`."""

    code = "device_error"


class IoError(Error):
    """The operating system reported `native`."""

    code = "io_error"


class ParseError(Error, ValueError):
    """Malformed input text."""

    code = "parse_error"


class VerificationFailed(Error):
    """Data read back differ from the data written."""

    code = "verification_failed"


class ResidencyViolated(Error):
    """Memory is not where the device's policy requires it."""

    code = "residency_violated"


class LimitExceeded(Error):
    """One call is larger than a limit set at create: `option` sets it."""

    code = "limit_exceeded"


BY_CODE: dict[str, type[Error]] = {cls.code: cls for cls in Error.__subclasses__()}


def make(
    code: str,
    text: str,
    resource: str,
    option: str,
    native: int,
    subject: int,
    required: int,
    available: int,
    explanation: Explanation | None,
    demand: int,
) -> Error:
    """Makes the exception of a status; the core calls it."""
    return BY_CODE.get(code, Error)(
        text,
        resource=resource,
        option=option,
        native=native,
        subject=subject,
        required=required,
        available=available,
        explanation=explanation,
        demand=demand,
    )
