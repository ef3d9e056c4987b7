//! Log lines and violations: one function for the process, so that one test of a process has them.

mod common;

use kvarena::{set_log, set_violation, Error, HolderOptions, LogLevel, Pool, PoolOptions, Urgency};
use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::{Arc, Mutex};

type Lines = Arc<Mutex<Vec<String>>>;

/// Frees a block twice.
fn break_a_promise() -> Error {
    let mut pool = Pool::create_with(
        &PoolOptions { num_blocks: 4, ..Default::default() },
        Some("broken"),
        None,
    )
    .unwrap();
    let holder = pool.open_holder(&HolderOptions::default()).unwrap();
    let (mut blocks, mut generations) = ([0; 1], [0; 1]);
    pool.allocate(holder, Urgency::Default, &mut blocks, &mut generations).unwrap();
    pool.free(holder, &blocks, &generations, None).unwrap();
    pool.free(holder, &blocks, &generations, None).unwrap_err()
}

/// In a process of its own: a panic cannot pass through the library.
#[test]
fn a_panic_in_a_function_ends_the_process() {
    const CHILD: &str = "KVARENA_TEST_CHILD";
    let name = "a_panic_in_a_function_ends_the_process";
    if env::var_os(CHILD).is_some() {
        set_log(LogLevel::Info, Some(Box::new(|_, _| panic!("on purpose")))).unwrap();
        break_a_promise();
        return;
    }
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&child.stderr).into_owned();
    assert_eq!(child.status.signal(), Some(6), "{printed}");
    assert!(printed.contains("on purpose"), "{printed}");
}

#[test]
fn lines_and_violations_reach_their_functions() {
    let (lines, violations) = (Lines::default(), Lines::default());
    let to = lines.clone();
    let log = move |level, line: &str| to.lock().unwrap().push(format!("{level:?} {line}"));
    set_log(LogLevel::Info, Some(Box::new(log))).unwrap();
    let refused = set_log(LogLevel::Unknown(17), Some(Box::new(|_, _| ())));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));

    // Without a function for violations they are logged.
    let error = break_a_promise();
    assert!(matches!(error, Error::DoubleRelease(_)), "{error:?}");
    let logged = lines.lock().unwrap().clone();
    assert!(logged.iter().any(|l| l.starts_with("Critical ")), "{logged:?}");

    let to = violations.clone();
    set_violation(Some(Box::new(move |status, call, object| {
        to.lock().unwrap().push(format!("{} {call} {object}", status.code()));
    })));
    let error = break_a_promise();
    let seen = violations.lock().unwrap().clone();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].starts_with("double_release ") && seen[0].len() > 16, "{seen:?}");
    assert!(error.to_string().contains("block"), "{error}");

    // As before, and then silence.
    set_violation(None);
    let before = lines.lock().unwrap().len();
    break_a_promise();
    assert!(lines.lock().unwrap().len() > before);
    assert_eq!(violations.lock().unwrap().len(), 1);
    set_log(LogLevel::Info, None).unwrap();
    let before = lines.lock().unwrap().len();
    break_a_promise();
    assert_eq!(lines.lock().unwrap().len(), before);
    // The function was given back with the last call.
    assert_eq!(Arc::strong_count(&lines), 1);
}
