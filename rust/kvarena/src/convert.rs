//! From the structs and numbers of `sys` to those of this crate, and back.

use crate::sys;
use std::ffi::{CStr, CString};
use std::os::raw::c_char;

/// Made of what the library wrote.
pub(crate) trait FromC<T> {
    fn from_c(value: T) -> Self;
}

/// Becomes what the library reads.
pub(crate) trait IntoC<T> {
    fn into_c(self) -> T;
}

macro_rules! same {
    ($($type:ty)*) => {$(
        impl FromC<$type> for $type {
            fn from_c(value: $type) -> Self {
                value
            }
        }
        impl IntoC<$type> for $type {
            fn into_c(self) -> $type {
                self
            }
        }
    )*};
}
same! { i32 i64 u32 u64 f32 f64 }

impl FromC<i32> for bool {
    fn from_c(value: i32) -> Self {
        value != 0
    }
}

impl IntoC<i32> for bool {
    fn into_c(self) -> i32 {
        i32::from(self)
    }
}

/// An enumeration of the header. A number that this crate does not know is `Unknown`.
macro_rules! enumeration {
    (
        $(#[$doc:meta])*
        $name:ident {
            $(#[$first_doc:meta])* $first:ident = $first_value:ident,
            $($(#[$value_doc:meta])* $variant:ident = $value:ident,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $(#[$first_doc])*
            $first,
            $($(#[$value_doc])* $variant,)*
            /// A number that this crate does not know.
            Unknown(i32),
        }

        impl Default for $name {
            fn default() -> Self {
                Self::$first
            }
        }

        impl From<i32> for $name {
            fn from(number: i32) -> Self {
                match number {
                    $crate::sys::$first_value => Self::$first,
                    $($crate::sys::$value => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }
        }

        impl From<$name> for i32 {
            fn from(value: $name) -> i32 {
                match value {
                    $name::$first => $crate::sys::$first_value,
                    $($name::$variant => $crate::sys::$value,)*
                    $name::Unknown(other) => other,
                }
            }
        }

        impl $crate::convert::FromC<i32> for $name {
            fn from_c(value: i32) -> Self {
                Self::from(value)
            }
        }

        impl $crate::convert::IntoC<i32> for $name {
            fn into_c(self) -> i32 {
                self.into()
            }
        }
    };
}

/// A number that names something; 0 is none.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(std::num::NonZeroU64);

        impl $name {
            /// Returns the id with this number; none for 0.
            pub fn from_raw(number: u64) -> Option<Self> {
                std::num::NonZeroU64::new(number).map(Self)
            }

            /// Returns the number, as logs and reports have it.
            pub fn raw(self) -> u64 {
                self.0.get()
            }

            /// What a call of the library wrote when it succeeded.
            #[allow(dead_code)]
            pub(crate) fn written(number: u64) -> Self {
                Self::from_raw(number).expect("a call that succeeds writes an id")
            }
        }

        impl $crate::convert::FromC<u64> for Option<$name> {
            fn from_c(value: u64) -> Self {
                $name::from_raw(value)
            }
        }
    };
}

/// A result struct: the members of the header's, with the types of this crate.
macro_rules! answer {
    (
        $(#[$doc:meta])*
        $name:ident from $raw:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl From<&$crate::sys::$raw> for $name {
            fn from(raw: &$crate::sys::$raw) -> Self {
                Self { $($field: $crate::convert::FromC::from_c(raw.$field),)* }
            }
        }
    };
}

/// An option struct: the members of the header's that are no pointers. Zero means the default.
macro_rules! options {
    (
        $(#[$doc:meta])*
        $name:ident to $raw:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            pub(crate) fn raw(&self) -> $crate::sys::$raw {
                $crate::sys::$raw {
                    $($field: $crate::convert::IntoC::into_c(self.$field),)*
                    ..Default::default()
                }
            }
        }

        impl From<&$crate::sys::$raw> for $name {
            fn from(raw: &$crate::sys::$raw) -> Self {
                Self { $($field: $crate::convert::FromC::from_c(raw.$field),)* }
            }
        }
    };
}

/// A copy of the text at `text`; NULL is "".
///
/// # Safety
/// `text` is NULL or ends with NUL.
pub(crate) unsafe fn string_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    CStr::from_ptr(text).to_string_lossy().into_owned()
}

/// Text as C reads it, up to its first NUL.
pub(crate) fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).expect("no NUL is left")
}

/// C text of an option: NULL without one. The string must outlive the call.
pub(crate) fn pointer_of(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(std::ptr::null(), |t| t.as_ptr())
}

/// Text from a function that writes it by the rule of `snprintf` and may fail, and its status. Some
/// functions write when they fail too.
pub(crate) fn text_and_status(
    mut call: impl FnMut(*mut c_char, usize, *mut usize) -> sys::kvarena_status,
) -> (String, sys::kvarena_status) {
    let mut room = 1024;
    loop {
        let mut buffer = vec![0_u8; room];
        let mut length = 0;
        let status = call(buffer.as_mut_ptr().cast(), buffer.len(), &mut length);
        if length < room {
            buffer.truncate(length);
            return (String::from_utf8_lossy(&buffer).into_owned(), status);
        }
        room = length + 1; // the text may change meanwhile, so that this may not be the last round
    }
}

/// Text from a function that writes it by the rule of `snprintf` and may fail.
pub(crate) fn text_of(
    call: impl FnMut(*mut c_char, usize, *mut usize) -> sys::kvarena_status,
) -> Result<String, sys::kvarena_status> {
    let (text, status) = text_and_status(call);
    if i32::from(status.code) == sys::KVARENA_OK {
        return Ok(text);
    }
    Err(status)
}

/// Entries from a function that writes them to an array and says how many there are.
pub(crate) fn list_of<T: Copy + Default>(
    mut call: impl FnMut(*mut T, usize, *mut usize) -> sys::kvarena_status,
) -> Result<Vec<T>, sys::kvarena_status> {
    let mut room = 16;
    loop {
        let mut entries = vec![T::default(); room];
        let mut count = 0;
        let status = call(entries.as_mut_ptr(), entries.len(), &mut count);
        if i32::from(status.code) == sys::KVARENA_OK {
            entries.truncate(count);
            return Ok(entries);
        }
        if count <= room {
            return Err(status);
        }
        room = count;
    }
}
