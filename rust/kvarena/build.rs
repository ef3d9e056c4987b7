//! Finds libkvarena.so. The first of these places that has it is taken:
//!
//! 1. `KVARENA_LIB_DIR`, a folder. It must have the library.
//! 2. The newest CMake build of the source tree that this crate lies in: `build/*/src/capi`.
//! 3. What `pkg-config` says of `kvarena-c`, then the folders in which libraries are installed.
//!
//! `KVARENA_INCLUDE_DIR` is where `kvarena/kvarena.h` lies; only the crate's own tests read it.
//! Dependent crates find the folder in `DEP_KVARENA_LIB_DIR`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use std::{env, fs, process};

const LIBRARY: &str = "libkvarena.so";
const LOADED: &str = "libkvarena.so.0";
const SYSTEM: [&str; 5] = [
    "/usr/local/lib",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

fn has_library(folder: &Path) -> bool {
    folder.join(LIBRARY).exists()
}

/// The folder that the user names.
fn named() -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("KVARENA_LIB_DIR").filter(|v| !v.is_empty())?);
    if !has_library(&folder) {
        eprintln!(
            "KVARENA_LIB_DIR is {}, which has no {LIBRARY}. Name the folder that has it, or unset \
             the variable.",
            folder.display()
        );
        process::exit(1);
    }
    Some(folder)
}

/// The newest library of the source tree.
fn built(tree: &Path) -> Option<PathBuf> {
    let mut newest: Option<(SystemTime, PathBuf)> = None;
    for build in fs::read_dir(tree.join("build")).ok()?.flatten() {
        let folder = build.path().join("src/capi");
        if let Ok(time) = fs::metadata(folder.join(LIBRARY)).and_then(|m| m.modified()) {
            // A sanitizer's library cannot be loaded by a program without it.
            let is_sanitized = ["asan-ubsan", "tsan"].iter().any(|p| build.path().ends_with(p));
            if !is_sanitized && newest.as_ref().map_or(true, |(other, _)| time > *other) {
                newest = Some((time, folder));
            }
        }
    }
    newest.map(|(_, folder)| folder)
}

/// The folders that pkg-config names, and the usual ones.
fn installed() -> Option<PathBuf> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let asked = Command::new(program).args(["--variable=libdir", "kvarena-c"]).output();
    let answer = asked.ok().filter(|o| o.status.success()).map(|o| o.stdout).unwrap_or_default();
    let answer = String::from_utf8_lossy(&answer).trim().to_string();
    let named = Some(answer).filter(|a| !a.is_empty()).map(PathBuf::from);
    named.into_iter().chain(SYSTEM.iter().map(PathBuf::from)).find(|f| has_library(f))
}

/// Links to the library in the output folder: Cargo puts such folders on the loader's path of what
/// `cargo run` and `cargo test` start.
fn make_loadable(folder: &Path, out: &Path) {
    for name in [LIBRARY, LOADED] {
        let link = out.join(name);
        let _ = fs::remove_file(&link);
        if let Ok(target) = fs::canonicalize(folder.join(name)) {
            std::os::unix::fs::symlink(target, &link)
                .unwrap_or_else(|e| panic!("{}: {e}", link.display()));
        }
    }
}

fn main() {
    let crate_folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let tree = crate_folder.join("../..");
    for variable in ["KVARENA_LIB_DIR", "KVARENA_INCLUDE_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    println!("cargo:rerun-if-changed=build.rs");

    let folder = named().or_else(|| built(&tree)).or_else(installed);
    let include = match env::var_os("KVARENA_INCLUDE_DIR") {
        Some(named) => PathBuf::from(named),
        None if tree.join("include/kvarena/kvarena.h").exists() => tree.join("include"),
        None => folder.as_ref().map_or_else(PathBuf::new, |f| f.join("../include")),
    };
    println!("cargo:rustc-env=KVARENA_INCLUDE_DIR={}", include.display());
    println!("cargo:rustc-link-lib=dylib=kvarena");
    let folder = match folder {
        Some(folder) => folder,
        None => {
            println!(
                "cargo:warning={LIBRARY} was not found. Name its folder with KVARENA_LIB_DIR, build \
                 it (cmake --preset release, then cmake --build --preset release --target \
                 kvarena_c), or install it."
            );
            // A file that is not there: look again next time.
            println!("cargo:rerun-if-changed={}", out.join(LIBRARY).display());
            return;
        }
    };
    println!("cargo:rerun-if-changed={}", folder.join(LIBRARY).display());
    make_loadable(&folder, &out);
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:lib_dir={}", folder.display());
}
