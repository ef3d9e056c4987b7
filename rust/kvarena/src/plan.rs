//! Plans: how much memory a model takes, and how many sequences fit.

use crate::convert::{c_string, text_and_status, text_of};
use crate::status::{check, failed, Error, Result};
use crate::sys;
use std::fmt;

/// A plan that could not be made.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanError {
    /// The numbers.
    pub error: Error,
    /// One line that says what was wrong.
    pub message: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PlanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Computes how much memory a model takes and how many sequences fit. `request` is a JSON object:
/// `model` (a preset's name, or a path to a model's files) and members named as in the header's
/// description, of which `memory_bytes` (or `gpu`, a preset's name) is needed. Returns the plan as
/// JSON, with its arithmetic, the options of the cache that it plans, and the changes that make it
/// fit.
pub fn plan_json(request: &str) -> std::result::Result<String, PlanError> {
    let request = c_string(request);
    // SAFETY: request and buffer are valid.
    let (text, status) = text_and_status(|out, size, length| unsafe {
        sys::kvarena_plan_json(request.as_ptr(), out, size, length)
    });
    match check(status) {
        Ok(()) => Ok(text),
        Err(error) if text.is_empty() => Err(PlanError { message: error.to_string(), error }),
        Err(error) => Err(PlanError { error, message: text }),
    }
}

/// Returns the names of the built-in models and GPUs as JSON.
pub fn presets_json() -> Result<String> {
    // SAFETY: the buffer is valid.
    text_of(|out, size, length| unsafe { sys::kvarena_presets_json(out, size, length) })
        .map_err(failed)
}
