//! `sys` beside the header: the C compiler tells sizes, offsets, values and types.

use super::sys::{self, mirror};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// Everything that `sys` declares.
struct Mirror {
    enums: Vec<mirror::Enum>,
    structs: Vec<mirror::Struct>,
    callbacks: Vec<mirror::Function>,
    functions: Vec<mirror::Function>,
}

fn mirrored() -> Mirror {
    let mut structs = sys::mirrored_plain_structs();
    structs.extend(sys::mirrored_sized_structs());
    Mirror {
        enums: sys::mirrored_enums(),
        structs,
        callbacks: sys::mirrored_callbacks(),
        functions: sys::mirrored_functions(),
    }
}

fn header() -> String {
    let path = Path::new(env!("KVARENA_INCLUDE_DIR")).join("kvarena/kvarena.h");
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The C name of a Rust type. Arrays are no results of it.
fn c_type(rust: &str) -> String {
    let rust: String = rust.split_whitespace().collect();
    if let Some(behind) = rust.strip_prefix("*const") {
        return format!("{} const*", c_type(behind));
    }
    if let Some(behind) = rust.strip_prefix("*mut") {
        return format!("{}*", c_type(behind));
    }
    let name = match rust.as_str() {
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "usize" => "size_t",
        "f32" => "float",
        "f64" => "double",
        "c_char" => "char",
        "c_void" | "" => "void",
        other => other,
    };
    name.to_string()
}

/// The C type of a pointer to a member.
fn c_pointer_to(rust: &str) -> String {
    let inside = rust.trim().strip_prefix('[').and_then(|r| r.strip_suffix(']'));
    match inside.and_then(|i| i.split_once(';')) {
        Some((element, length)) => format!("{} (*)[{}]", c_type(element), length.trim()),
        None => format!("{}*", c_type(rust)),
    }
}

fn c_arguments(function: &mirror::Function) -> String {
    let types: Vec<String> = function.arguments.iter().map(|a| c_type(a)).collect();
    if types.is_empty() {
        "void".to_string()
    } else {
        types.join(", ")
    }
}

/// A C program that declares every function again, as `sys` does, and prints the rest. A function
/// whose types differ does not compile.
fn c_program(mirror: &Mirror) -> String {
    let mut c = String::from("#include <kvarena/kvarena.h>\n#include <stdio.h>\n");
    for f in &mirror.functions {
        let result = c_type(f.result);
        writeln!(c, "{result} {}({});", f.name, c_arguments(f)).unwrap();
    }
    for f in &mirror.callbacks {
        let arguments = c_arguments(f);
        let is_same = format!("_Generic(({})0, void (*)({arguments}): 1, default: 0)", f.name);
        writeln!(c, "_Static_assert({is_same}, \"{}\");", f.name).unwrap();
    }
    c.push_str("int main(void) {\n");
    for (name, format) in [
        ("KVARENA_ABI", "%d"),
        ("KVARENA_STREAM_LEGACY", "%d"),
        ("KVARENA_STREAM_PER_THREAD", "%d"),
        ("KVARENA_MAX_LARGEST", "%d"),
        ("KVARENA_MAX_PREFIX_REASONS", "%d"),
        ("KVARENA_PREFIX_BUCKETS", "%d"),
        ("KVARENA_MAX_GHOSTS", "%d"),
        ("KVARENA_MAX_SALTS", "%d"),
    ] {
        writeln!(c, "  printf(\"value {name} {format}\\n\", {name});").unwrap();
    }
    for (value, _) in mirror.enums.iter().flat_map(|e| &e.values) {
        writeln!(c, "  printf(\"value {value} %d\\n\", {value});").unwrap();
    }
    for s in &mirror.structs {
        let name = s.name;
        writeln!(c, "  printf(\"struct {name} %zu %zu\\n\", sizeof({name}), _Alignof({name}));")
            .unwrap();
        for m in &s.members {
            let (member, pointer) = (m.name, c_pointer_to(m.type_name));
            writeln!(
                c,
                "  printf(\"member {name}.{member} %zu %zu %d\\n\", offsetof({name}, {member}), \
                 sizeof((({name}*)0)->{member}), \
                 _Generic(&(({name}*)0)->{member}, {pointer}: 1, default: 0));"
            )
            .unwrap();
        }
    }
    c.push_str("}\n");
    c
}

/// The same lines, as `sys` has them.
fn expected_lines(mirror: &Mirror) -> Vec<String> {
    let mut lines = vec![
        format!("value KVARENA_ABI {}", sys::KVARENA_ABI),
        format!("value KVARENA_STREAM_LEGACY {}", sys::KVARENA_STREAM_LEGACY),
        format!("value KVARENA_STREAM_PER_THREAD {}", sys::KVARENA_STREAM_PER_THREAD),
        format!("value KVARENA_MAX_LARGEST {}", sys::KVARENA_MAX_LARGEST),
        format!("value KVARENA_MAX_PREFIX_REASONS {}", sys::KVARENA_MAX_PREFIX_REASONS),
        format!("value KVARENA_PREFIX_BUCKETS {}", sys::KVARENA_PREFIX_BUCKETS),
        format!("value KVARENA_MAX_GHOSTS {}", sys::KVARENA_MAX_GHOSTS),
        format!("value KVARENA_MAX_SALTS {}", sys::KVARENA_MAX_SALTS),
    ];
    for (value, number) in mirror.enums.iter().flat_map(|e| &e.values) {
        lines.push(format!("value {value} {number}"));
    }
    for s in &mirror.structs {
        lines.push(format!("struct {} {} {}", s.name, s.size, s.alignment));
        for m in &s.members {
            lines.push(format!("member {}.{} {} {} 1", s.name, m.name, m.offset, m.size));
        }
    }
    lines
}

/// The names in the header: of functions, and of the members or enumerators of each type.
fn declared(header: &str) -> (Vec<String>, BTreeMap<String, Vec<String>>) {
    let without_comments = |line: &str| line.split("//").next().unwrap_or("").to_string();
    let code: String = header.lines().map(|l| without_comments(l) + "\n").collect();
    let functions = code
        .split("KVARENA_API ")
        .skip(1)
        .filter_map(|text| text.split('(').next())
        .filter_map(|head| head.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next())
        .filter(|name| name.starts_with("kvarena_"))
        .map(str::to_string)
        .collect();
    let mut types = BTreeMap::new();
    for text in code.split("typedef ").skip(1) {
        let is_enum = text.starts_with("enum ");
        let (head, rest) = match text.split_once('{') {
            Some(parts) if is_enum || text.starts_with("struct ") => parts,
            _ => continue,
        };
        if head.contains(';') {
            continue; // a handle
        }
        let body = rest.split('}').next().unwrap_or("");
        let last_word = |part: &str| {
            let part = part.split(['[', '=']).next().unwrap_or("").trim();
            part.rsplit([' ', '*', '\n']).next().unwrap_or("").to_string()
        };
        let separator = if is_enum { ',' } else { ';' };
        let names = body.split(separator).map(last_word).filter(|n| !n.is_empty()).collect();
        types.insert(head.split_whitespace().last().unwrap_or("").to_string(), names);
    }
    (functions, types)
}

/// What of the header `sys` lacks, and the other way round.
fn missing_names(mirror: &Mirror, header: &str) -> Vec<String> {
    let (functions, types) = declared(header);
    let mut ours: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for e in &mirror.enums {
        ours.insert(e.name.to_string(), e.values.iter().map(|v| v.0.to_string()).collect());
    }
    for s in &mirror.structs {
        ours.insert(s.name.to_string(), s.members.iter().map(|m| m.name.to_string()).collect());
    }
    let mut problems = Vec::new();
    for name in types.keys().chain(ours.keys()) {
        if types.get(name) != ours.get(name) {
            problems.push(format!("{name}: {:?}, here {:?}", types.get(name), ours.get(name)));
        }
    }
    let known: Vec<&str> = mirror.functions.iter().map(|f| f.name).collect();
    problems.extend(functions.iter().filter(|f| !known.contains(&f.as_str())).cloned());
    problems
}

fn folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("kvarena-mirror-{}-{number}", process::id()));
    fs::create_dir_all(folder.join("kvarena")).unwrap();
    folder
}

/// Every difference between `mirror` and the text of a header.
fn differences(mirror: &Mirror, header: &str) -> Vec<String> {
    let mut problems = missing_names(mirror, header);
    let folder = folder();
    fs::write(folder.join("kvarena/kvarena.h"), header).unwrap();
    fs::write(folder.join("mirror.c"), c_program(mirror)).unwrap();
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let compiled = Command::new(&compiler)
        .args(["-std=c11", "-w", "-I", ".", "mirror.c", "-o", "mirror"])
        .current_dir(&folder)
        .output()
        .unwrap_or_else(|e| panic!("this test needs a C compiler (CC): {compiler}: {e}"));
    if compiled.status.success() {
        let printed = Command::new(folder.join("mirror")).output().unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        let expected = expected_lines(mirror);
        assert_eq!(printed.lines().count(), expected.len());
        for (c, rust) in printed.lines().zip(&expected).filter(|(c, rust)| c != rust) {
            problems.push(format!("the header has `{c}`, sys has `{rust}`"));
        }
    } else {
        problems.push(String::from_utf8_lossy(&compiled.stderr).into_owned());
    }
    fs::remove_dir_all(&folder).unwrap();
    problems
}

#[test]
fn sys_is_the_header() {
    let mirror = mirrored();
    assert!(mirror.functions.len() > 130 && mirror.structs.len() > 30);
    let problems = differences(&mirror, &header());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Changes the header and expects that the difference is found and names `subject`.
fn expect_found(from: &str, to: &str, subject: &str) {
    let header = header();
    assert_eq!(header.matches(from).count(), 1, "the header has `{from}` once");
    let problems = differences(&mirrored(), &header.replace(from, to)).join("\n");
    assert!(problems.contains(subject), "`{from}` -> `{to}` gave: {problems}");
}

#[test]
fn a_planted_difference_is_found() {
    // Two members of one type change places.
    expect_found(
        "  int32_t num_tokens;         ///< new tokens, 0 or more\n  int32_t urgency;            \
         ///< kvarena_urgency; default: the call's\n} kvarena_demand;",
        "  int32_t urgency;\n  int32_t num_tokens;\n} kvarena_demand;",
        "member kvarena_demand.num_tokens 12 4 1",
    );
    // A member of the same size has another sign, or points to const.
    expect_found(
        "  uint64_t subject;    ///<",
        "  int64_t subject;    ///<",
        "`member kvarena_status.subject 8 8 0`",
    );
    expect_found("  void* out;  ", "  const void* out;  ", "member kvarena_attend_args.out 16 8 0");
    // An enumerator, and a length.
    expect_found("  KVARENA_FP8_E4M3 = 3,", "  KVARENA_FP8_E4M3 = 5,", "value KVARENA_FP8_E4M3 5");
    expect_found("KVARENA_MAX_LARGEST 8", "KVARENA_MAX_LARGEST 9", "value KVARENA_MAX_LARGEST 9");
    // What is new in the header.
    expect_found("  KVARENA_INT8 = 4,", "  KVARENA_INT8 = 4, KVARENA_INT4 = 6,", "kvarena_dtype");
    expect_found(
        "  void* stream;          ///< the stream of the step's work",
        "  int32_t more; void* stream; ///<",
        "kvarena_step_options",
    );
    expect_found(
        "KVARENA_API uint32_t kvarena_abi(void);",
        "KVARENA_API uint32_t kvarena_abi(void);\nKVARENA_API int32_t kvarena_new(void);",
        "kvarena_new",
    );
    // A function's argument, and that of a function which the caller passes.
    expect_found(
        "KVARENA_API const char* kvarena_name_of_code(uint8_t code);",
        "KVARENA_API const char* kvarena_name_of_code(int8_t code);",
        "conflicting types for",
    );
    expect_found(
        "typedef void (*kvarena_log_function)(void* user, int32_t level, const char* line, size_t length);",
        "typedef void (*kvarena_log_function)(void* user, int64_t level, const char* line, size_t length);",
        "kvarena_log_function",
    );
}
