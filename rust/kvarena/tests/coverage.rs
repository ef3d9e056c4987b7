//! Everything of the header is reachable without `unsafe` calls of `sys`: each of its functions is
//! called by a file of this crate.

use std::fs;
use std::path::Path;

fn calls_of(source: &str, function: &str) -> bool {
    source.match_indices(&format!("sys::{function}")).any(|(at, found)| {
        let behind = source[at + found.len()..].chars().next();
        !behind.map_or(false, |c| c.is_alphanumeric() || c == '_')
    })
}

/// The functions that no source calls.
fn uncalled(functions: &[&str], sources: &str) -> Vec<String> {
    let is_uncalled = |f: &&&str| !calls_of(sources, f);
    functions.iter().filter(is_uncalled).map(|f| f.to_string()).collect()
}

#[test]
fn every_function_is_called_by_the_safe_layer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = String::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name != "sys.rs" && name != "sys_test.rs" {
            sources += &fs::read_to_string(&path).unwrap();
        }
    }
    let sys = fs::read_to_string(folder.join("sys.rs")).unwrap();
    let functions: Vec<&str> = sys
        .lines()
        .filter_map(|line| line.trim().strip_prefix("fn kvarena_"))
        .filter_map(|rest| rest.split('(').next())
        .collect();
    let functions: Vec<String> = functions.iter().map(|f| format!("kvarena_{f}")).collect();
    let functions: Vec<&str> = functions.iter().map(String::as_str).collect();
    let header = Path::new(env!("KVARENA_INCLUDE_DIR")).join("kvarena/kvarena.h");
    let header = fs::read_to_string(header).unwrap();
    let declared = header.lines().filter(|line| line.starts_with("KVARENA_API ")).count();
    assert_eq!(functions.len(), declared);
    assert_eq!(uncalled(&functions, &sources), Vec::<String>::new());
    // A call that is gone is found.
    let without = sources.replace("sys::kvarena_pool_restore(", "sys::kvarena_pool_restored(");
    assert_eq!(uncalled(&functions, &without), ["kvarena_pool_restore"]);
}
