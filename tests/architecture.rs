//! Holds the shape of `src/` against what was decided about it (`docs/architecture.md`): who may import whom, how long
//! a file may get, which names say nothing, and that the core has no clock, no socket and no log.
//!
//! Reads the sources as text and needs no dependency, so that it runs before anything compiles.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "reads the repository's own files; a panic is a failed test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The top-level modules of the library, lowest layer first. A module imports from lower layers and from within
/// itself; modules of one layer do not know each other. A new module gets its place here first, and a row in the map
/// at the head of `src/lib.rs`.
const LAYERS: &[&[&str]] = &[
    &["reason", "moment"],
    &["mqtt", "proxy_header", "chart"],
    &["admission"],
    &["named_file"],
    &[
        "telemetry",
        "drain",
        "socket",
        "clock",
        "secret_file",
        "reconnect",
    ],
    &["tls"],
    &["relay", "upstream", "refusal", "door", "gate", "budget"],
    &["connection"],
    &["listener", "admin"],
    &["config"],
    &["app"],
    &["fleet", "report"],
    &["cli"],
];

/// Modules that decide and therefore take time, randomness and waiters from their caller.
const PURE: &[&str] = &["mqtt", "proxy_header", "admission", "moment", "reason", "chart"];

/// Words that a pure module does not contain outside its tests, and what to do instead.
const IMPURE: &[(&str, &str)] = &[
    (
        "tokio",
        "the core knows no runtime: hand the waiter in as a type parameter",
    ),
    ("async", "the core does not wait: say when to call again"),
    ("await", "the core does not wait: say when to call again"),
    ("tracing", "the core does not log: return what happened"),
    ("println", "the core does not print: return what happened"),
    ("eprintln", "the core does not print: return what happened"),
    ("TcpStream", "the core has no socket: take bytes"),
    ("TcpListener", "the core has no socket: take bytes"),
    ("UdpSocket", "the core has no socket: take bytes"),
    ("UnixStream", "the core has no socket: take bytes"),
    ("Instant", "the core has no clock: take `now: Moment`"),
    ("SystemTime", "the core has no clock: take `now: Moment`"),
    ("DefaultClock", "the core has no clock: take `now: Moment`"),
    ("MonotonicClock", "the core has no clock: take `now: Moment`"),
];

/// Names under which anything could be found, and nothing is.
const EMPTY_NAMES: &[&str] = &[
    "util",
    "utils",
    "common",
    "helper",
    "helpers",
    "misc",
    "types",
    "constants",
    "shared",
];

/// Most lines of a file before its tests: past it there is a second idea in it.
const MAX_LINES: usize = 400;

/// Files that may be longer, as (path under `src/`, reason).
const LONG_FILES: &[(&str, &str)] = &[];

#[test]
fn imports_go_downwards() {
    let ranks = ranks();
    let mut faults = Vec::new();
    for source in sources() {
        let Some(own) = source.module() else { continue };
        let Some(own_rank) = ranks.get(own.as_str()) else {
            continue;
        };
        for (line, target) in source.imports() {
            let at = format!("src/{}:{line}", source.path.display());
            match ranks.get(target.as_str()) {
                _ if target == own => {}
                None => faults.push(format!("{at}: `{target}` is no module of the layer table")),
                Some(rank) if rank < own_rank => {}
                Some(rank) if rank == own_rank => {
                    faults.push(format!(
                        "{at}: `{own}` imports `{target}`, which is in the same layer"
                    ));
                }
                Some(_) => faults.push(format!("{at}: `{own}` imports `{target}`, which is above it")),
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn every_module_has_a_layer() {
    let ranks = ranks();
    let present: BTreeSet<String> = sources().iter().filter_map(Source::module).collect();
    let mut faults: Vec<String> = present
        .iter()
        .filter(|module| !ranks.contains_key(module.as_str()))
        .map(|module| format!("`{module}` has no layer: give it one in LAYERS and in the map of src/lib.rs"))
        .collect();
    faults.extend(
        ranks
            .keys()
            .filter(|module| !present.contains(**module))
            .map(|module| format!("LAYERS names `{module}`, which does not exist")),
    );
    assert_none(&faults);
}

/// The map that people read must not say something else than the table that is enforced.
#[test]
fn the_map_in_lib_rs_agrees_with_the_layers() {
    let ranks = ranks();
    let text = fs::read_to_string(src().join("lib.rs")).unwrap();
    let rows: Vec<Vec<String>> = text
        .lines()
        .filter(|line| line.starts_with("//! |") && line.contains("[`"))
        .map(|line| {
            line.split("[`")
                .skip(1)
                .filter_map(|rest| rest.split('`').next())
                .map(String::from)
                .collect()
        })
        .collect();
    let on_the_map: BTreeSet<&str> = rows.iter().flatten().map(String::as_str).collect();
    let mut faults: Vec<String> = ranks
        .keys()
        .filter(|module| !on_the_map.contains(**module))
        .map(|module| format!("the map of src/lib.rs does not name `{module}`"))
        .collect();
    let mut floor = 0;
    for row in &rows {
        let layers: Vec<usize> = row
            .iter()
            .filter_map(|module| ranks.get(module.as_str()).copied())
            .collect();
        if layers.len() != row.len() {
            faults.push(format!(
                "a row of the map names a module that LAYERS does not: {row:?}"
            ));
        }
        if layers.iter().any(|layer| *layer < floor) {
            faults.push(format!(
                "a row of the map stands above a layer that it belongs below: {row:?}"
            ));
        }
        floor = layers.iter().copied().max().unwrap_or(floor);
    }
    assert_none(&faults);
}

#[test]
fn lib_and_main_hold_no_logic() {
    let mut faults = Vec::new();
    for source in all_sources() {
        let allowed: fn(&str) -> bool = match source.path.to_str() {
            Some("lib.rs") => |line| line.starts_with("pub mod ") || line.starts_with("#["),
            Some("main.rs") => |line| {
                [
                    "use std::process::ExitCode;",
                    "fn main() -> ExitCode {",
                    "seawall::cli::main()",
                    "}",
                ]
                .contains(&line)
            },
            _ => continue,
        };
        for (number, line) in source.code.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !allowed(line) {
                faults.push(format!(
                    "src/{}:{}: `{line}` belongs in a module",
                    source.path.display(),
                    number + 1
                ));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn the_core_is_pure() {
    let mut faults = Vec::new();
    for source in sources() {
        if !source
            .module()
            .is_some_and(|module| PURE.contains(&module.as_str()))
        {
            continue;
        }
        for (number, line) in source.before_tests().lines().enumerate() {
            for word in words(line) {
                if let Some((_, instead)) = IMPURE.iter().find(|(impure, _)| *impure == word) {
                    let at = format!("src/{}:{}", source.path.display(), number + 1);
                    faults.push(format!("{at}: `{word}`: {instead}"));
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn files_hold_one_idea() {
    let sources = sources();
    let mut faults = Vec::new();
    for source in &sources {
        let lines = source.before_tests().lines().count();
        let excused = LONG_FILES.iter().any(|(path, _)| Path::new(path) == source.path);
        match (lines > MAX_LINES, excused) {
            (true, false) => faults.push(format!(
                "src/{} has {lines} lines before its tests, more than {MAX_LINES}: split the second idea off",
                source.path.display()
            )),
            (false, true) => faults.push(format!(
                "src/{} needs no exception any more",
                source.path.display()
            )),
            _ => {}
        }
    }
    for (path, reason) in LONG_FILES {
        if reason.is_empty() || !sources.iter().any(|source| source.path == Path::new(path)) {
            faults.push(format!("the exception for src/{path} has no reason, or no file"));
        }
    }
    assert_none(&faults);
}

#[test]
fn names_say_something() {
    let mut faults = Vec::new();
    for source in all_sources() {
        for part in source.path.iter().filter_map(|part| part.to_str()) {
            let name = part.strip_suffix(".rs").unwrap_or(part);
            if EMPTY_NAMES.contains(&name) {
                faults.push(format!("src/{}: `{name}` says nothing", source.path.display()));
            }
        }
        for (number, line) in source.code.lines().enumerate() {
            let words: Vec<&str> = words(line).collect();
            for pair in words.windows(2) {
                if pair[0] == "mod" && EMPTY_NAMES.contains(&pair[1]) {
                    let at = format!("src/{}:{}", source.path.display(), number + 1);
                    faults.push(format!("{at}: `mod {}` says nothing", pair[1]));
                }
            }
        }
    }
    assert_none(&faults);
}

/// What the other tests rest on: the reader of this file sees code and nothing but code.
#[test]
fn the_reader_sees_imports_and_only_imports() {
    let cases: &[(&str, &[&str])] = &[
        ("use crate::door::Door;", &["door"]),
        (
            "use crate::{door::{Door, Knock}, tls, relay::run as go};",
            &["door", "tls", "relay"],
        ),
        ("use crate::{\n    app,\n    cli::{self},\n};", &["app", "cli"]),
        (
            "fn f(x: crate::app::App) -> crate::config::Config {}",
            &["app", "config"],
        ),
        ("pub(in crate::admission) fn f() {}", &["admission"]),
        (
            "// use crate::app::App;\n/* crate::cli /* nested */ crate::app */",
            &[],
        ),
        (
            "let s = \"crate::app\"; let r = r#\"crate::\"cli\"#; let b = b\"crate::tls\";",
            &[],
        ),
        (
            "let c = '\"'; use crate::app; let d = '\\''; use crate::cli;",
            &["app", "cli"],
        ),
        ("fn f<'a>(x: &'a str) { crate::tls::g(x) }", &["tls"]),
        ("pub(crate) fn f() {} mycrate::app(); $crate::app!()", &["app"]),
        ("use super::app;", &["app"]),
        ("mod tests { use super::*; }", &[]),
    ];
    for (text, expected) in cases {
        let source = Source::new(PathBuf::from("relay.rs"), text);
        let found: Vec<String> = source.imports().into_iter().map(|(_, target)| target).collect();
        assert_eq!(&found, expected, "in {text:?}");
    }
    let nested = Source::new(
        PathBuf::from("config/raw.rs"),
        "use super::Config; use super::super::app::App;",
    );
    assert_eq!(nested.imports(), [(1, "app".to_owned())]);
}

#[test]
fn the_reader_finds_the_tests_of_a_file() {
    let source = Source::new(
        PathBuf::from("moment.rs"),
        "fn a() {}\n#[cfg(test)]\nfn only_for_tests() {}\n\n#[cfg(test)]\n#[allow(clippy::x)]\nmod tests {\n    tokio\n}\n",
    );
    assert_eq!(source.before_tests().lines().count(), 4);
    let outside = Source::new(
        PathBuf::from("mqtt/connect.rs"),
        "#[cfg(test)]\nmod vectors;\n\nfn a() {}\n",
    );
    assert_eq!(outside.before_tests().lines().count(), 4);
    assert_eq!(outside.test_files(), [PathBuf::from("mqtt/connect/vectors.rs")]);
    let inside = Source::new(PathBuf::from("mqtt/mod.rs"), "#[cfg(test)]\nmod vectors;\n");
    assert_eq!(inside.test_files(), [PathBuf::from("mqtt/vectors.rs")]);
}

/// One file of `src/`.
struct Source {
    /// Relative to `src/`.
    path: PathBuf,
    /// The text with comments and the insides of literals blanked, line for line.
    code: String,
}

impl Source {
    fn new(path: PathBuf, text: &str) -> Self {
        Self {
            path,
            code: blank_comments_and_literals(text),
        }
    }

    /// The top-level module that the file belongs to; `None` for the roots of the library and the binary.
    fn module(&self) -> Option<String> {
        let first = self.path.iter().next()?.to_str()?;
        let name = first.strip_suffix(".rs").unwrap_or(first);
        (name != "lib" && name != "main").then(|| name.to_owned())
    }

    /// How many modules deep the file's own module is: 1 for `door.rs` and `config/mod.rs`.
    fn depth(&self) -> usize {
        self.path.iter().count() - usize::from(self.path.ends_with("mod.rs"))
    }

    fn before_tests(&self) -> &str {
        let mut modules = test_modules(&self.code).into_iter();
        let inline = modules.find(|(_, declaration)| !declaration.ends_with(';'));
        let end = inline.map_or(self.code.len(), |(start, _)| start);
        self.code.get(..end).unwrap_or(&self.code)
    }

    /// Files whose module is declared here for tests alone.
    fn test_files(&self) -> Vec<PathBuf> {
        let folder = if self.path.ends_with("mod.rs") {
            self.path.parent().map(Path::to_path_buf).unwrap_or_default()
        } else {
            self.path.with_extension("")
        };
        test_modules(&self.code)
            .into_iter()
            .filter_map(|(_, declaration)| declaration.strip_suffix(';'))
            .filter_map(|declaration| words(declaration).last())
            .map(|name| folder.join(format!("{name}.rs")))
            .collect()
    }

    /// Every mention of another top-level module, as (line, module).
    fn imports(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for start in occurrences(&self.code, "crate::") {
            let path = &self.code[start + "crate::".len()..];
            let line = self.code[..start].lines().count().max(1);
            found.extend(first_segments(path).into_iter().map(|target| (line, target)));
        }
        let climb = "super::".repeat(self.depth());
        for start in occurrences(self.before_tests(), &climb) {
            let path = &self.code[start + climb.len()..];
            let line = self.code[..start].lines().count().max(1);
            found.extend(first_segments(path).into_iter().map(|target| (line, target)));
        }
        found.retain(|(_, target)| target != "*");
        found
    }
}

/// The files that are part of the product: without those that only tests include.
fn sources() -> Vec<Source> {
    let all = all_sources();
    let for_tests: BTreeSet<PathBuf> = all.iter().flat_map(Source::test_files).collect();
    all.into_iter()
        .filter(|source| !for_tests.contains(&source.path))
        .collect()
}

fn all_sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![src()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push(Source::new(
                    path.strip_prefix(src()).unwrap().to_path_buf(),
                    &text,
                ));
            }
        }
    }
    assert!(!found.is_empty(), "no source found under {}", src().display());
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn ranks() -> BTreeMap<&'static str, usize> {
    let mut ranks = BTreeMap::new();
    for (rank, layer) in LAYERS.iter().enumerate() {
        for module in *layer {
            assert!(
                ranks.insert(*module, rank).is_none(),
                "LAYERS names `{module}` twice"
            );
        }
    }
    ranks
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// Where `needle` begins in `code` as a path of its own, not as the tail of a longer name or path.
fn occurrences(code: &str, needle: &str) -> Vec<usize> {
    code.match_indices(needle)
        .map(|(start, _)| start)
        .filter(|start| !code[..*start].ends_with(|before: char| is_word(before) || before == ':'))
        .collect()
}

/// The first segment of a path, or of every path of a `{…}` group.
fn first_segments(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        return words(path.split(|after: char| !is_word(after)).next().unwrap_or(""))
            .map(String::from)
            .collect();
    };
    let mut depth = 0_usize;
    let mut items = vec![String::new()];
    for letter in group.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(String::new()),
            _ if depth == 0 => items.last_mut().unwrap().push(letter),
            _ => {}
        }
    }
    items
        .iter()
        .filter_map(|item| words(item).next())
        .map(String::from)
        .collect()
}

/// Modules under `#[cfg(test)]`, as (where the attribute begins, the line of the declaration).
fn test_modules(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (start, attribute) in code.match_indices("#[cfg(test)]") {
        let declaration = code[start + attribute.len()..]
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.starts_with("#["))
            .unwrap_or("");
        if words(declaration).any(|word| word == "mod") {
            found.push((start, declaration));
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !is_word(letter))
        .filter(|word| !word.is_empty())
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Replaces comments and the insides of string and character literals by blanks; line breaks stay.
fn blank_comments_and_literals(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let length = match letter {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest, 1),
            '\'' => character(rest),
            'r' | 'b' | 'c' if !code.ends_with(is_word) => prefixed_literal(rest),
            _ => 0,
        };
        let blanked = if length == 0 { letter.len_utf8() } else { length };
        let (token, after) = rest.split_at(blanked);
        if length == 0 {
            code.push_str(token);
        } else {
            code.extend(
                token
                    .chars()
                    .map(|inside| if inside == '\n' { '\n' } else { ' ' }),
            );
        }
        rest = after;
    }
    code
}

/// Length of the (nested) block comment at the head of `text`.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Length of the string literal whose contents begin at `from`.
fn string(text: &str, from: usize) -> usize {
    let mut escaped = false;
    for (at, letter) in text[from..].char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return from + at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the character literal at the head of `text`; 0: it is a lifetime.
fn character(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    let Some((_, first)) = letters.next() else {
        return 0;
    };
    if first == '\\' {
        return letters
            .skip(1)
            .find(|(_, letter)| *letter == '\'')
            .map_or(0, |(at, _)| at + 1);
    }
    letters
        .next()
        .filter(|(_, letter)| *letter == '\'')
        .map_or(0, |(at, _)| at + 1)
}

/// Length of a literal such as `r#"…"#`, `b"…"`, `br"…"`, `b'…'`; 0: it is a plain word.
fn prefixed_literal(text: &str) -> usize {
    let prefix = text
        .bytes()
        .take_while(|byte| b"rbc".contains(byte))
        .take(2)
        .count();
    let (letters, rest) = text.split_at(prefix);
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    match rest.as_bytes().get(hashes) {
        Some(b'"') if letters.contains('r') => {
            let close = format!("\"{}", "#".repeat(hashes));
            let from = prefix + hashes + 1;
            text[from..]
                .find(&close)
                .map_or(text.len(), |at| from + at + close.len())
        }
        Some(b'"') if hashes == 0 => string(text, prefix + 1),
        Some(b'\'') if hashes == 0 && letters == "b" => match character(rest) {
            0 => 0,
            length => prefix + length,
        },
        _ => 0,
    }
}
