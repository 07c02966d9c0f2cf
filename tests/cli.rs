//! The configuration and the command line as their users meet them: the files of `tests/config`, the shipped
//! configuration, the documentation, and the binary with its output and exit codes.
//!
//! `SEAWALL_BLESS=1 cargo test --test cli` writes the expected messages anew; read the difference before you keep it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends by panicking"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use seawall::config::{self, Change, Key, Sources};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// TOML files of a folder, relative to the package.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| Path::new(folder).join(entry.unwrap().file_name()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder}");
    files
}

fn sources(file: &Path) -> Sources {
    Sources {
        file: Some(file.to_owned()),
        ..Sources::default()
    }
}

/// Tests of an integration binary run in the folder of the package, so that messages name relative paths.
#[test]
fn every_invalid_file_has_its_message() {
    let bless = std::env::var_os("SEAWALL_BLESS").is_some();
    let mut differing = Vec::new();
    for file in files("tests/config/invalid") {
        let message = format!(
            "{}\n",
            config::load(&sources(&file)).expect_err(&file.display().to_string())
        );
        let expected = file.with_extension("txt");
        if bless {
            fs::write(&expected, &message).unwrap();
        }
        if fs::read_to_string(&expected).unwrap_or_default() != message {
            differing.push(format!("--- {}\n{message}", expected.display()));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn every_valid_file_means_the_same_when_printed() {
    let folder = tempfile::tempdir().unwrap();
    for file in files("tests/config/valid").iter().chain(&files("config")) {
        let loaded =
            config::load(&sources(file)).unwrap_or_else(|mistakes| panic!("{}\n{mistakes}", file.display()));
        let copy = folder.path().join("copy.toml");
        fs::write(&copy, loaded.to_toml()).unwrap();
        let again =
            config::load(&sources(&copy)).unwrap_or_else(|mistakes| panic!("{}\n{mistakes}", file.display()));
        assert_eq!(loaded, again, "{}", file.display());
    }
}

#[test]
fn every_key_differs_from_its_default_in_one_valid_file() {
    let loaded = config::load(&sources(Path::new("tests/config/valid/every-key.toml"))).unwrap();
    let same: Vec<&str> = loaded
        .keys()
        .iter()
        .filter(|key| key.default.as_ref() == Some(&key.value))
        .map(|key| key.path.as_str())
        // 1 is its default.
        .filter(|path| *path != "admission.cost.persistent")
        .collect();
    assert!(same.is_empty(), "{same:?}");
}

/// The value at a dotted path.
fn value<'a>(table: &'a toml::Table, key: &Key) -> Option<&'a toml::Value> {
    let mut table = table;
    for part in key.table().split('.') {
        table = table.get(part)?.as_table()?;
    }
    table.get(key.name())
}

#[test]
fn the_shipped_file_states_every_key_with_its_default_and_a_reason() {
    let text = fs::read_to_string(root().join("config/seawall.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    for key in config::keys() {
        if key.in_file_alone {
            // Stated as an example, for an empty list would be in the way of the first table.
            let example = format!("\n# [[{}]]\n", key.path);
            assert!(text.contains(&example), "{} is not stated", key.path);
            continue;
        }
        let stated = value(&table, &key).unwrap_or_else(|| panic!("{} is not stated", key.path));
        if let Some(default) = &key.default {
            assert_eq!(stated, default, "{}", key.path);
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.windows(2) {
        let is_key = pair[1].contains(" = ") && !pair[1].starts_with('#');
        assert!(
            !is_key || pair[0].starts_with('#'),
            "no reason above {:?}",
            pair[1]
        );
    }
}

/// Whoever takes the marks of a comment off an example has a table that is legal.
#[test]
fn the_examples_of_the_shipped_file_are_legal() {
    let text = fs::read_to_string(root().join("config/seawall.toml")).unwrap();
    let mut examples = 0;
    let mut inside = false;
    let uncommented = text.lines().map(|line| {
        inside = line.starts_with("# [[") || inside && line.starts_with("# ");
        examples += usize::from(line.starts_with("# [["));
        if inside {
            line.trim_start_matches("# ")
        } else {
            line
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seawall.toml");
    fs::write(&file, uncommented.collect::<Vec<_>>().join("\n")).unwrap();
    let config = config::load(&sources(&file)).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let given = config
        .keys()
        .iter()
        .filter(|key| key.in_file_alone && key.place.is_some());
    assert_eq!(given.count(), examples);
    assert_ne!(examples, 0);
}

#[test]
fn the_minimal_file_states_what_must_be_set_and_nothing_else() {
    let text = fs::read_to_string(root().join("config/minimal.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    for key in config::keys() {
        assert_eq!(
            value(&table, &key).is_some(),
            key.default.is_none(),
            "{}",
            key.path
        );
    }
}

#[test]
fn every_key_is_documented_with_default_and_reload() {
    let text = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let mut documented = 0;
    for key in config::keys() {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{}`", key.path)))
            .unwrap_or_else(|| panic!("{} is not documented", key.path));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let required = if key.default.is_none() { " (!)" } else { "" };
        assert_eq!(cells[1], format!("`{}`{required}", key.path));
        assert_eq!(
            cells[2],
            key.default
                .as_ref()
                .map_or(String::new(), |default| format!("`{default}`")),
            "{row}"
        );
        assert_eq!(
            cells[4],
            if key.change == Change::OnReload { "R" } else { "" },
            "{row}"
        );
        assert!(!cells[5].is_empty(), "{row}");
        documented += 1;
    }
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| `") && line.matches('|').count() == 6)
        .count();
    assert_eq!(rows, documented, "a row of a key that is none");
}

#[test]
fn the_documentation_shows_real_messages() {
    let text = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let (_, after) = text.split_once("## What a mistake looks like").unwrap();
    let examples: Vec<&str> = after.split("```").skip(1).step_by(2).collect();
    assert!(!examples.is_empty() && examples.iter().all(|example| !example.trim().is_empty()));
    let messages: Vec<String> = files("tests/config/invalid")
        .iter()
        .map(|file| fs::read_to_string(file.with_extension("txt")).unwrap())
        .collect();
    for part in examples.iter().flat_map(|example| example.trim().split("\n\n")) {
        assert!(
            messages.iter().any(|message| message.contains(part)),
            "no such message:\n{part}"
        );
    }
}

/// The binary, in a folder of its own and with no environment but what is given.
struct Shell {
    folder: tempfile::TempDir,
}

impl Shell {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn write(&self, name: &str, text: &str) -> &Self {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        if path.extension().is_some_and(|extension| extension == "key") {
            self.permit(name, 0o640);
        }
        self
    }

    fn permit(&self, name: &str, mode: u32) {
        fs::set_permissions(self.folder.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A certificate, its key, and the flags that name them and a broker.
    fn with_certificate(&self) -> [String; 6] {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        self.write("server.pem", &pair.cert.pem())
            .write("server.key", &pair.signing_key.serialize_pem());
        [
            "tls.certificate=server.pem",
            "tls.private_key=server.key",
            "upstream.servers=127.0.0.1:1",
        ]
        .map(|set| ["--set".to_owned(), set.to_owned()])
        .concat()
        .try_into()
        .unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let binary = std::env::var_os("SEAWALL_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_seawall").into());
        let mut command = Command::new(fs::canonicalize(binary).unwrap());
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.command(arguments).output().unwrap())
    }

    fn run_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Ran {
        Ran::from(
            self.command(arguments)
                .envs(environment.iter().copied())
                .output()
                .unwrap(),
        )
    }
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

const MINIMAL: &str = "[tls]\ncertificate = \"server.pem\"\nprivate_key = \"server.key\"\n[upstream]\nservers = [\"127.0.0.1:1\"]\n";

#[test]
fn help_and_version_are_no_error() {
    let shell = Shell::new();
    for arguments in [
        &["--help"][..],
        &["help"],
        &["run", "--help"],
        &["check", "-h"],
        &["demo", "--help"],
    ] {
        let ran = shell.run(arguments);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(ran.out.contains("Usage: seawall"), "{}", ran.out);
    }
    let version = shell.run(&["--version"]);
    assert_eq!(version.code, Some(0));
    assert_eq!(version.out, format!("seawall {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(shell.run(&["-V"]).out, version.out);
}

#[test]
fn a_mistyped_command_line_is_64() {
    let shell = Shell::new();
    for arguments in [
        &[][..],
        &["rum"],
        &["run", "extra"],
        &["run", "--print"],
        &["check", "--config"],
        &["check", "--set"],
        &["check", "--config", "a", "--config", "b"],
        &["demo", "--devices", "0"],
        &["demo", "--devices", "-1"],
        &["demo", "--rate", "fast"],
        &["certs"],
        &["--config", "x", "run"],
    ] {
        let ran = shell.run(arguments);
        assert_eq!(ran.code, Some(64), "{arguments:?}: {ran:?}");
        assert!(
            ran.out.is_empty() && ran.err.contains("--help"),
            "{arguments:?}: {ran:?}"
        );
    }
}

#[test]
fn a_plan_is_the_same_for_the_same_seed_and_writes_what_it_found() {
    let shell = Shell::new();
    let plan = |more: &[&str]| {
        let arguments = [
            "plan",
            "--devices",
            "300",
            "--capacity",
            "20",
            "--outage",
            "1m",
            "--watch",
            "2m",
        ];
        shell.run(&[&arguments, more].concat())
    };
    let first = plan(&["--json", "-", "--html", "plan.html"]);
    assert_eq!((first.code, first.err.as_str()), (Some(0), ""));
    assert_eq!(plan(&["--json", "-"]).out, first.out);
    assert_ne!(plan(&["--json", "-", "--seed", "2"]).out, first.out);

    let runs: Vec<serde_json::Value> = serde_json::from_str(&first.out).unwrap();
    let returned: Vec<u64> = runs
        .iter()
        .map(|run| run["outcome"]["returned"].as_u64().unwrap())
        .collect();
    assert!(
        returned.len() == 2 && returned.iter().all(|devices| *devices > 0),
        "{returned:?}"
    );
    let page = fs::read_to_string(shell.folder.path().join("plan.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("through Seawall"));

    let sweep = plan(&["--front", "seawall", "--sweep", "rate=5..20:3"]);
    assert_eq!(sweep.out.matches("through Seawall").count(), 3, "{}", sweep.out);

    for (more, code) in [
        (["--sweep", "admission.rat=1,2"], 78),
        (["--set", "admission.rate=fast"], 78),
        (["--patience", "100ms"], 64),
        (["--sweep", "rate=5..1"], 64),
        (["--html", "missing/plan.html"], 71),
    ] {
        let ran = plan(&more);
        assert!(ran.code == Some(code) && !ran.err.is_empty(), "{more:?}: {ran:?}");
    }
}

#[test]
fn check_finds_the_default_file_and_says_so() {
    let shell = Shell::new();
    shell.with_certificate();
    shell.write("config/seawall.toml", MINIMAL);
    let ran = shell.run(&["check"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains("config/seawall.toml; 3 of "), "{}", ran.out);
}

#[test]
fn check_warns_of_what_is_no_mistake() {
    let shell = Shell::new();
    shell.write("seawall.toml", MINIMAL);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    shell.write("server.pem", &params.self_signed(&key).unwrap().pem());
    shell.write("server.key", &key.serialize_pem());
    let ran = shell.run(&["check", "--config", "seawall.toml"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.starts_with("no mistakes"), "{ran:?}");
    let expected = "warning: tls.certificate: the certificate in server.pem expired on ";
    assert!(ran.err.starts_with(expected), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");

    shell.permit("server.key", 0o644);
    let [certificate, private_key] = [
        "admin.tls.certificate=server.pem",
        "admin.tls.private_key=server.key",
    ];
    let ran = shell.run(&[
        "check",
        "--config",
        "seawall.toml",
        "--set",
        certificate,
        "--set",
        private_key,
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for table in ["tls", "admin.tls"] {
        let expected = format!(
            "warning: {table}.private_key: server.key can be read by others (mode 644); chmod 640 it"
        );
        assert!(ran.err.lines().any(|line| line.starts_with(&expected)), "{ran:?}");
    }
    assert_eq!(ran.err.lines().count(), 4, "{ran:?}");
}

#[test]
fn check_says_where_it_looked_for_a_file() {
    let ran = Shell::new().run(&["check"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(78), ""));
    assert!(
        ran.err
            .contains("neither config/seawall.toml nor /etc/seawall/seawall.toml"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("upstream.servers: must be set"), "{}", ran.err);
    assert!(
        ran.err.ends_with("4 mistakes in the configuration\n"),
        "{}",
        ran.err
    );
}

#[test]
fn no_file_is_needed_where_flags_or_environment_say_it_all() {
    let shell = Shell::new();
    let flags = shell.with_certificate();
    let flags: Vec<&str> = std::iter::once("check")
        .chain(flags.iter().map(String::as_str))
        .collect();
    assert_eq!(shell.run(&flags).code, Some(0));
    let environment = [
        ("SEAWALL_TLS__CERTIFICATE", "server.pem"),
        ("SEAWALL_TLS__PRIVATE_KEY", "server.key"),
        ("SEAWALL_UPSTREAM__SERVERS", "127.0.0.1:1"),
        ("SEAWALL_ADMIN_SERVICE_HOST", "10.0.0.1"),
        ("SEAWALL_HOME", "/"),
    ];
    let ran = shell.run_with(&environment, &["check"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn flags_beat_the_environment_which_beats_the_file() {
    let shell = Shell::new();
    shell.with_certificate();
    shell.write(
        "s.toml",
        &format!("{MINIMAL}[admission]\nrate = 1\nburst = 2\nmax_held = 3\n"),
    );
    let environment = [
        ("SEAWALL_ADMISSION__RATE", "10"),
        ("SEAWALL_ADMISSION__BURST", "20"),
    ];
    let ran = shell.run_with(
        &environment,
        &[
            "check",
            "--print",
            "--config",
            "s.toml",
            "--set",
            "admission.rate=50",
            "--set",
            "admission.rate=100",
        ],
    );
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    for (line, source) in [
        ("rate = 100 ", "--set"),
        ("burst = 20 ", "SEAWALL_ADMISSION__BURST"),
        ("max_held = 3 ", "s.toml:9"),
    ] {
        let printed = ran
            .out
            .lines()
            .find(|printed| printed.starts_with(line))
            .unwrap_or_else(|| panic!("{}", ran.out));
        assert!(printed.ends_with(&format!("# {source}")), "{printed}");
    }
    shell.write("again.toml", &ran.out);
    let again = shell.run(&["check", "--print", "--config", "again.toml"]);
    let values = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.split(" # ").next().unwrap().trim().to_owned())
            .collect()
    };
    assert_eq!(values(&again.out), values(&ran.out));
}

#[test]
fn every_mistake_of_every_source_is_reported_at_once() {
    let shell = Shell::new();
    shell.write(
        "s.toml",
        &format!("{MINIMAL}[admission]\nrate = \"fast\"\nrat = 5\n"),
    );
    let environment = [
        ("SEAWALL_ADMISSION__RATE", "10"),
        ("SEAWALL_ADMISSION__BURTS", "1"),
        ("SEAWALL_CONNECT_TIMEOUT", "1s"),
    ];
    let ran = shell.run_with(
        &environment,
        &[
            "check",
            "--config",
            "s.toml",
            "--set",
            "relay.buffer=1",
            "--set",
            "x",
        ],
    );
    assert_eq!((ran.code, ran.out.as_str()), (Some(78), ""));
    for message in [
        // Also the value that the environment beats.
        "s.toml:7:8: admission.rate: found \"fast\" (a string)",
        "s.toml:8:1: admission.rat: no key of this name",
        "SEAWALL_ADMISSION__BURTS=1: admission.burts: no key of this name",
        "did you mean admission.burst?",
        "SEAWALL_CONNECT_TIMEOUT=1s: connect.timeout: two underscores",
        "--set relay.buffer=1: relay.buffer: found 1",
        "--set x: no key and value",
        // Files that are named are opened even so.
        "s.toml:2:15: tls.certificate: can't read server.pem: No such file",
        "s.toml:3:15: tls.private_key: can't read server.key: No such file",
        "8 mistakes in the configuration",
    ] {
        assert!(ran.err.contains(message), "{message}\nnot in\n{}", ran.err);
    }
}

#[test]
fn check_loads_what_run_would() {
    let shell = Shell::new();
    shell.with_certificate();
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    shell.write("s.toml", MINIMAL);
    for (name, text, message) in [
        (
            "server.key",
            other.signing_key.serialize_pem(),
            "tls.private_key: server.key does not belong to",
        ),
        (
            "server.key",
            String::new(),
            "tls.private_key: server.key has no private key",
        ),
        (
            "server.pem",
            "nonsense".to_owned(),
            "tls.certificate: server.pem has no certificate",
        ),
    ] {
        shell.with_certificate();
        shell.write(name, &text);
        for command in ["check", "run"] {
            let ran = shell.run(&[command, "--config", "s.toml"]);
            assert_eq!((ran.code, ran.out.as_str()), (Some(78), ""), "{command}: {ran:?}");
            assert!(
                ran.err.contains(message),
                "{command}: {message}\nnot in\n{}",
                ran.err
            );
        }
    }
}

#[test]
fn what_would_wait_for_its_other_end_is_told_at_once() {
    let shell = Shell::new();
    shell.with_certificate();
    shell.write("s.toml", MINIMAL);
    let pipe = shell.folder.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for command in ["check", "run"] {
        let ran = shell.run(&[command, "--config", "pipe"]);
        assert_eq!(ran.code, Some(78), "{ran:?}");
        assert!(
            ran.err
                .contains("pipe: can't be read: it is a pipe, and not a regular file"),
            "{ran:?}"
        );
        for (key, more) in [
            ("tls.certificate", ""),
            ("tls.private_key", ""),
            ("tls.client_ca", "tls.client_auth=optional"),
            ("tls.client_crl", "tls.client_auth=optional"),
            ("tls.resumption.secret_file", ""),
            ("admin.token_file", ""),
            ("upstream.tls.ca", "upstream.tls.enabled=true"),
            ("shared_budget.ca", "shared_budget.redis=rediss://127.0.0.1"),
        ] {
            let set = format!("{key}=pipe");
            let mut arguments = vec![command, "--config", "s.toml", "--set", &set];
            if !more.is_empty() {
                arguments.extend(["--set", more]);
            }
            if key == "tls.client_crl" {
                arguments.extend(["--set", "tls.client_ca=server.pem"]);
            }
            let ran = shell.run(&arguments);
            assert_eq!(ran.code, Some(78), "{key}: {ran:?}");
            assert!(
                ran.err.contains(key) && ran.err.contains("it is a pipe"),
                "{key}: {ran:?}"
            );
        }
    }
}

#[test]
fn check_says_what_a_run_could_not_write_to_and_makes_nothing() {
    let shell = Shell::new();
    shell.with_certificate();
    shell.write("s.toml", MINIMAL);
    shell.write("notes", "first\nand a last line without an end");
    shell.write("folder/kept", "");
    let folder = shell.folder.path().to_owned();
    std::os::unix::fs::symlink("loop", folder.join("loop")).unwrap();
    let names = || {
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = names();
    let socket = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    for (key, value, message) in [
        (
            "audit.path",
            "folder",
            "audit.path: folder is a folder, and not a regular file",
        ),
        (
            "audit.path",
            "loop",
            "audit.path: can't open loop: Too many levels",
        ),
        (
            "audit.path",
            "missing/a.jsonl",
            "audit.path: can't write in the folder missing: No such file",
        ),
        ("audit.path", "/dev/null", "audit.path: /dev/null is a device"),
        ("audit.path", "notes", "audit.path: notes is another file"),
        (
            "listen.takeover",
            &socket("missing/socket"),
            "listen.takeover: can't make a socket in the folder",
        ),
        (
            "listen.takeover",
            &socket("notes"),
            "notes is a file, and not a socket",
        ),
    ] {
        let set = format!("{key}={value}");
        let common = ["--config", "s.toml", "--set", &set];
        let ran = shell.run(&[&["check"], &common[..]].concat());
        assert_eq!(ran.code, Some(78), "{set}: {ran:?}");
        assert!(ran.err.contains(message), "{message}\nnot in\n{}", ran.err);
        if value.ends_with("missing/socket") {
            // A run serves all the same.
            continue;
        }
        let more = [
            "--set",
            "admin.address=127.0.0.1:0",
            "--set",
            "listen.addresses=127.0.0.1:0",
        ];
        let ran = shell.run(&[&["run"], &common[..], &more].concat());
        assert_eq!(ran.code, Some(71), "{set}: {ran:?}");
        assert!(ran.err.contains(key), "{set}: {ran:?}");
    }
    assert_eq!(names(), before);
    assert_eq!(
        fs::read_to_string(folder.join("notes")).unwrap(),
        "first\nand a last line without an end"
    );
    for (key, value) in [("audit.path", "new.jsonl"), ("listen.takeover", &socket("new"))] {
        let ran = shell.run(&["check", "--config", "s.toml", "--set", &format!("{key}={value}")]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    }
    assert_eq!(names(), before);

    shell.write("nul.toml", &format!("{MINIMAL}[audit]\npath = \"a\\u0000b\"\n"));
    let ran = shell.run(&["check", "--config", "nul.toml"]);
    assert_eq!(ran.code, Some(78), "{ran:?}");
    assert!(ran.err.contains("audit.path: can't open a"), "{ran:?}");
}

#[test]
fn a_port_that_is_taken_is_71() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let shell = Shell::new();
    let flags = shell.with_certificate();
    let address = format!("listen.addresses={}", taken.local_addr().unwrap());
    let mut arguments = vec!["run", "--set", &address, "--set", "admin.address=127.0.0.1:0"];
    arguments.extend(flags.iter().map(String::as_str));
    let ran = shell.run(&arguments);
    assert_eq!(ran.code, Some(71), "{ran:?}");
    assert!(
        ran.err.contains(&taken.local_addr().unwrap().to_string()),
        "{ran:?}"
    );
}

#[test]
fn a_closed_or_full_stdout_is_no_panic() {
    let shell = Shell::new();
    let flags = shell.with_certificate();
    let mut arguments = vec!["check", "--print"];
    arguments.extend(flags.iter().map(String::as_str));

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let broken = Ran::from(
        shell
            .command(&arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap(),
    );
    assert_eq!((broken.code, broken.err.as_str()), (Some(0), ""));

    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let full = Ran::from(
        shell
            .command(&arguments)
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap(),
    );
    assert_eq!(full.code, Some(71));
    assert!(full.err.contains("can't write to stdout"), "{full:?}");
}

#[test]
fn the_shipped_file_runs_with_the_certificates_that_it_names() {
    let shell = Shell::new();
    shell.write(
        "config/seawall.toml",
        &fs::read_to_string(root().join("config/seawall.toml")).unwrap(),
    );
    assert_eq!(shell.run(&["check"]).code, Some(78));
    let made = shell.run(&["certs", "--out", "certs", "--name", "gateway.example"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(
        made.out.lines().any(|line| line == "certs/server.pem"),
        "{made:?}"
    );
    let ran = shell.run(&["check"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn streams_that_came_closed_are_no_trouble() {
    let shell = Shell::new();
    let flags = shell.with_certificate();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "exec \"$0\" check --print \"$@\" <&- >&- 2>&-"])
        .arg(shell.command(&[]).get_program())
        .args(flags)
        .current_dir(shell.folder.path());
    assert_eq!(command.status().unwrap().code(), Some(0));
}
