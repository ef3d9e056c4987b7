//! Outcomes of calls.

use crate::convert::string_at;
use crate::explanation::Explanation;
use crate::sys;
use std::fmt;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What the numbers of a status are about: an object, a pool or an argument.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resource(pub(crate) u8);

impl Resource {
    /// Returns the name, for example "block"; "unknown" for a number of a newer library.
    pub fn name(self) -> String {
        // SAFETY: the library's names are static.
        unsafe { string_at(sys::kvarena_name_of_resource(self.0)) }
    }

    /// Returns the `kvarena_resource`.
    pub fn number(self) -> i32 {
        self.0.into()
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// The numbers of an outcome. `kvarena_status` in the header says what they are for each code.
#[derive(Clone, Copy)]
pub struct Status(pub(crate) sys::kvarena_status);

impl Status {
    /// Returns the name of the code, for example "exhausted".
    pub fn code(&self) -> String {
        // SAFETY: the library's names are static.
        unsafe { string_at(sys::kvarena_name_of_code(self.0.code)) }
    }

    /// Returns what the numbers are about.
    pub fn resource(&self) -> Resource {
        Resource(self.0.resource)
    }

    /// Returns the name of the option that was refused or sets the limit, if there is one.
    pub fn option(&self) -> Option<String> {
        // SAFETY: the library's names are static.
        let name = || unsafe { string_at(sys::kvarena_name_of_option(self.0.option)) };
        (self.0.option != 0).then(name)
    }

    /// Returns the number of the driver, of errno or of the check.
    pub fn native(&self) -> i32 {
        self.0.native
    }

    /// Returns the raw id or the refused value.
    pub fn subject(&self) -> u64 {
        self.0.subject
    }

    /// Returns what was asked for, or the smallest accepted value.
    pub fn required(&self) -> u64 {
        self.0.required
    }

    /// Returns what could be had, or the largest accepted value.
    pub fn available(&self) -> u64 {
        self.0.available
    }

    /// Returns the struct of the header.
    pub fn as_raw(&self) -> &sys::kvarena_status {
        &self.0
    }

    pub(crate) fn is_ok(&self) -> bool {
        i32::from(self.0.code) == sys::KVARENA_OK
    }

    /// The refusal of a slice that does not have the length that the call needs.
    pub(crate) fn wrong_length(given: usize, needed: usize) -> Self {
        Self(sys::kvarena_status {
            code: sys::KVARENA_INVALID_ARGUMENT as u8,
            resource: sys::KVARENA_RESOURCE_SPAN_SIZE as u8,
            subject: given as u64,
            required: needed as u64,
            available: needed as u64,
            ..Default::default()
        })
    }

    /// A refusal without numbers.
    pub(crate) fn refusal(code: i32, resource: i32) -> Self {
        Self(sys::kvarena_status {
            code: code as u8,
            resource: resource as u8,
            ..Default::default()
        })
    }

    /// The refusal of a layer that is in no group.
    pub(crate) fn no_layer(layer: i32) -> Self {
        let mut status = Self::refusal(sys::KVARENA_INVALID_ARGUMENT, sys::KVARENA_RESOURCE_LAYER);
        status.0.subject = i64::from(layer) as u64;
        status
    }

    /// The refusal of a call in the wrong order.
    pub(crate) fn no_step() -> Self {
        Self::refusal(sys::KVARENA_FAILED_PRECONDITION, sys::KVARENA_RESOURCE_STEP)
    }
}

impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        let parts = |s: &sys::kvarena_status| {
            (s.code, s.resource, s.option, s.native, s.subject, s.required, s.available)
        };
        parts(&self.0) == parts(&other.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status")
            .field("code", &self.code())
            .field("resource", &self.resource())
            .field("option", &self.option())
            .field("native", &self.native())
            .field("subject", &self.subject())
            .field("required", &self.required())
            .field("available", &self.available())
            .finish()
    }
}

/// One line for a person: what happened, the numbers, and what was expected.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the status is valid.
        f.write_str(&describe_by(|out, size| unsafe { sys::kvarena_describe(&self.0, out, size) }))
    }
}

/// The line of a function that writes it by the rule of `snprintf`.
pub(crate) fn describe_by(
    mut call: impl FnMut(*mut std::os::raw::c_char, usize) -> usize,
) -> String {
    let mut buffer = vec![0_u8; 512];
    loop {
        let length = call(buffer.as_mut_ptr().cast(), buffer.len());
        if length < buffer.len() {
            buffer.truncate(length);
            return String::from_utf8_lossy(&buffer).into_owned();
        }
        buffer.resize(length + 1, 0);
    }
}

/// Declares the variants that have a status alone.
macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident = $code:ident,)*) => {
        /// A call that failed. It has changed nothing, unless its description says otherwise. One
        /// variant for each code of the library; docs/reference/errors.md says when each occurs and
        /// what to do.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* $variant(Status),)*
            /// A pool is empty; for blocks, with the explanation of why.
            Exhausted(Box<Explanation>),
            /// A code that this crate does not know.
            Unknown(Status),
        }

        impl Error {
            /// Returns the numbers.
            pub fn status(&self) -> &Status {
                match self {
                    $(Self::$variant(status) => status,)*
                    Self::Exhausted(explanation) => &explanation.status,
                    Self::Unknown(status) => status,
                }
            }

            /// The error of a status that is not success. `explain` is asked when blocks are missing.
            pub(crate) fn new(
                status: sys::kvarena_status,
                explain: impl FnOnce(&sys::kvarena_status) -> Option<sys::kvarena_explanation>,
            ) -> Self {
                match i32::from(status.code) {
                    $(sys::$code => Self::$variant(Status(status)),)*
                    sys::KVARENA_EXHAUSTED => {
                        let resource = i32::from(status.resource);
                        let is_of_blocks = resource == sys::KVARENA_RESOURCE_BLOCK
                            || resource == sys::KVARENA_RESOURCE_RESERVATION;
                        let answer = if is_of_blocks { explain(&status) } else { None };
                        let status = Status(status);
                        Self::Exhausted(Box::new(match answer {
                            Some(raw) => Explanation::of(status, &raw),
                            None => Explanation::without_blocks(status),
                        }))
                    }
                    _ => Self::Unknown(Status(status)),
                }
            }
        }
    };
}

errors! {
    /// An argument or option is outside its range.
    InvalidArgument = KVARENA_INVALID_ARGUMENT,
    /// Valid, but this build, device or kernel cannot do it.
    Unsupported = KVARENA_UNSUPPORTED,
    /// The same object was named twice in one call.
    DuplicateArgument = KVARENA_DUPLICATE_ARGUMENT,
    /// No such sequence, holder, ticket, allocation or file.
    NotFound = KVARENA_NOT_FOUND,
    /// The object is in a state that forbids the call.
    FailedPrecondition = KVARENA_FAILED_PRECONDITION,
    /// The device cannot provide that many bytes.
    InsufficientVram = KVARENA_INSUFFICIENT_VRAM,
    /// A sequence would grow past its maximum length.
    ContextLengthExceeded = KVARENA_CONTEXT_LENGTH_EXCEEDED,
    /// A block reference was released that nobody holds.
    DoubleRelease = KVARENA_DOUBLE_RELEASE,
    /// What the handle or block named is over.
    StaleHandle = KVARENA_STALE_HANDLE,
    /// A holder released more references than it took.
    ReferenceUnderflow = KVARENA_REFERENCE_UNDERFLOW,
    /// An integrity check failed.
    InvariantViolated = KVARENA_INVARIANT_VIOLATED,
    /// The device or its driver reported `native`.
    DeviceError = KVARENA_DEVICE_ERROR,
    /// The operating system reported `native`.
    IoError = KVARENA_IO_ERROR,
    /// Malformed input text.
    ParseError = KVARENA_PARSE_ERROR,
    /// Data read back differ from the data written.
    VerificationFailed = KVARENA_VERIFICATION_FAILED,
    /// Memory is not where the device's policy requires it.
    ResidencyViolated = KVARENA_RESIDENCY_VIOLATED,
    /// One call is larger than a limit set at create.
    LimitExceeded = KVARENA_LIMIT_EXCEEDED,
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::new(status.0, |_| None)
    }
}

/// One line for a person. `describe` of a cache, device or kernels says more where they know more.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status().fmt(f)
    }
}

impl std::error::Error for Error {}

/// Turns a status into a result.
pub(crate) fn check(status: sys::kvarena_status) -> Result<()> {
    if Status(status).is_ok() {
        return Ok(());
    }
    Err(Status(status).into())
}

/// Turns the status of a failed helper call into an error.
pub(crate) fn failed(status: sys::kvarena_status) -> Error {
    Status(status).into()
}
