//! Clients that come back with a session: OpenSSL, Python and rustls, in TLS 1.2 and 1.3. What counts is what the daemon says that
//! it did; a client that only offers a ticket and gets a full handshake is "full".

use crate::rig::daemon::{binary, configuration};
use crate::rig::device::{read_packet, settings_for};
use crate::rig::packet::accepted;
use crate::rig::{Connect, Daemon, PATIENCE, Scene, Stub, within};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const VERSIONS: [&str; 2] = ["1.2", "1.3"];

/// A client that keeps its session from connection to connection.
enum Client {
    Rustls(Arc<ClientConfig>),
    OpenSsl {
        version: &'static str,
        authority: PathBuf,
        session: PathBuf,
    },
    Python {
        child: Child,
        stdin: ChildStdin,
        stdout: BufReader<ChildStdout>,
    },
}

impl Client {
    /// One of each kind and version.
    fn all(scene: &Scene) -> Vec<Self> {
        VERSIONS
            .iter()
            .flat_map(|version| {
                [
                    Self::rustls(version),
                    Self::openssl(scene, version),
                    Self::python(scene, version),
                ]
            })
            .collect()
    }

    fn rustls(version: &str) -> Self {
        let version = match version {
            "1.2" => &rustls::version::TLS12,
            _ => &rustls::version::TLS13,
        };
        let mut settings = settings_for(&[version]);
        settings.resumption = Resumption::in_memory_sessions(8);
        Self::Rustls(Arc::new(settings))
    }

    fn openssl(scene: &Scene, version: &'static str) -> Self {
        Self::OpenSsl {
            version,
            authority: scene.path("ca.pem"),
            session: scene.path(&format!("session-{version}.pem")),
        }
    }

    fn python(scene: &Scene, version: &str) -> Self {
        let mut child = python()
            .arg("play")
            .arg(scene.path("ca.pem"))
            .arg(version)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self::Python { child, stdin, stdout }
    }

    /// Connects, is in session with the broker, and leaves.
    async fn connect(&mut self, daemon: &Daemon) {
        match self {
            Self::Rustls(settings) => {
                let session = async {
                    let tcp = TcpStream::connect(daemon.address()).await.unwrap();
                    let name = ServerName::try_from("localhost").unwrap();
                    let connector = TlsConnector::from(Arc::clone(settings));
                    let mut stream = connector.connect(name, tcp).await.unwrap();
                    stream.write_all(&Connect::v311("rustls").bytes()).await.unwrap();
                    assert_eq!(read_packet(&mut stream).await.unwrap(), accepted(4));
                    stream.shutdown().await.unwrap();
                };
                within(PATIENCE, "a session with rustls", session).await;
            }
            Self::OpenSsl {
                version,
                authority,
                session,
            } => openssl(
                daemon,
                authority,
                session,
                &[version_flag(version), "-servername", "localhost"],
            ),
            Self::Python { stdin, stdout, .. } => {
                writeln!(stdin, "{}", daemon.port()).unwrap();
                let mut line = String::new();
                stdout.read_line(&mut line).unwrap();
                assert!(["reused\n", "full\n"].contains(&line.as_str()), "{line:?}");
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Self::Python { child, .. } = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The session is kept in a file. It ends by its own process id, once it has its CONNACK.
fn openssl(daemon: &Daemon, authority: &Path, session: &Path, flags: &[&str]) {
    let mut command = Command::new("openssl");
    command
        .args(["s_client", "-quiet", "-verify_return_error"])
        .args(["-connect", &daemon.address().to_string()])
        .args(flags)
        .arg("-CAfile")
        .arg(authority)
        .arg("-sess_out")
        .arg(session);
    if session.exists() {
        command.arg("-sess_in").arg(session);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdin.write_all(&Connect::v311("openssl").bytes()).unwrap();
    stdin.flush().unwrap();
    let (found, finding) = mpsc::channel();
    std::thread::spawn(move || {
        let mut connack = vec![0; 4];
        let _ = found.send(stdout.read_exact(&mut connack).map(|()| connack));
    });
    let connack = finding.recv_timeout(PATIENCE).expect("an answer in time");
    let _ = child.kill();
    child.wait().unwrap();
    assert_eq!(connack.expect("an answer"), accepted(4));
}

fn version_flag(version: &str) -> &'static str {
    if version == "1.2" { "-tls1_2" } else { "-tls1_3" }
}

fn python() -> Command {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests");
    let installed = folder.join(".tools/python/bin/python3");
    // Nothing but its standard library is needed.
    let python = std::env::var_os("SEAWALL_PYTHON").map_or(installed, PathBuf::from);
    let mut command = Command::new(if python.exists() { python } else { "python3".into() });
    command.arg(folder.join("peers/ssl_session.py"));
    command
}

/// A command that ends by itself: its exit code, and all that it said.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let ended = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

/// A file with a new secret, as an operator makes it.
fn secret_file(scene: &Scene, name: &str) -> String {
    let (code, printed, said) = run(Command::new(binary()).arg("secret"));
    assert_eq!(code, Some(0), "{said}");
    let digits = printed.trim_end();
    assert!(
        digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{printed:?}"
    );
    let path = scene.write(name, &printed);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    format!("{:?}", path.to_str().unwrap())
}

/// Full and resumed handshakes of a daemon.
async fn handshakes(daemon: &Daemon) -> (f64, f64) {
    let metrics = daemon.metrics().await;
    for kind in ["failed", "timeout"] {
        assert_eq!(
            metrics.sum("seawall_handshakes_total", &[("kind", kind)]),
            0.0,
            "{metrics}"
        );
    }
    let count = |kind| metrics.sum("seawall_handshakes_total", &[("kind", kind)]);
    (count("full"), count("resumed"))
}

/// All clients connect, one after the other.
async fn connect(clients: &mut [Client], daemon: &Daemon) {
    for client in clients {
        client.connect(daemon).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_and_a_replica_with_another_certificate_resume_them_all() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let secret = secret_file(&scene, "secret");
    let settings = [("tls.resumption.secret_file", secret.as_str())];
    let mut clients = Client::all(&scene);

    let first = Daemon::start(&scene, broker.address(), &settings);
    connect(&mut clients, &first).await;
    assert_eq!(handshakes(&first).await, (6.0, 0.0));
    connect(&mut clients, &first).await;
    assert_eq!(handshakes(&first).await, (6.0, 6.0), "the same process");
    drop(first);

    let second = Daemon::start(&scene, broker.address(), &settings);
    connect(&mut clients, &second).await;
    assert_eq!(handshakes(&second).await, (0.0, 6.0), "after a restart");

    // Of an authority that the clients don't even know: a resumed session shows no certificate.
    let folder = scene.path("other");
    let (code, _, said) = run(Command::new(binary()).arg("certs").arg("--out").arg(&folder));
    assert_eq!(code, Some(0), "{said}");
    let certificate = format!("{:?}", scene.text_path("other/server.pem"));
    let private_key = format!("{:?}", scene.text_path("other/server.key"));
    let settings = [
        settings[0],
        ("tls.certificate", certificate.as_str()),
        ("tls.private_key", &private_key),
    ];
    let replica = Daemon::start(&scene, broker.address(), &settings);
    connect(&mut clients, &replica).await;
    assert_eq!(
        handshakes(&replica).await,
        (0.0, 6.0),
        "by a replica with another certificate"
    );
    for daemon in [second, replica] {
        let said = daemon.stderr();
        assert!(!said.contains("secret_file is not set"), "{said}");
        assert!(!said.contains(secret.trim_matches('"')), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_rotations_within_the_lifetime_resume_and_its_end_does_not() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let secret = secret_file(&scene, "secret");
    let long = [
        ("tls.resumption.secret_file", secret.as_str()),
        ("tls.resumption.rotation", "\"1s\""),
    ];
    let mut clients = Client::all(&scene);
    let first = Daemon::start(&scene, broker.address(), &long);
    connect(&mut clients, &first).await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    connect(&mut clients, &first).await;
    assert_eq!(handshakes(&first).await, (6.0, 6.0), "two rotations later");

    let short = [long[0], long[1], ("tls.resumption.lifetime", "\"1s\"")];
    let second = Daemon::start(&scene, broker.address(), &short);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    connect(&mut clients, &second).await;
    assert_eq!(handshakes(&second).await, (6.0, 0.0), "after the lifetime");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_secret_or_a_changed_ticket_is_a_full_handshake() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let secret = secret_file(&scene, "secret");
    let settings = [("tls.resumption.secret_file", secret.as_str())];
    let mut clients = Client::all(&scene);
    let first = Daemon::start(&scene, broker.address(), &settings);
    connect(&mut clients, &first).await;
    for version in VERSIONS {
        let session = scene.path(&format!("session-{version}.pem"));
        let (code, _, said) = run(python().arg("tamper").arg(session));
        assert_eq!(code, Some(0), "{said}");
    }
    connect(&mut clients, &first).await;
    assert_eq!(
        handshakes(&first).await,
        (6.0 + 2.0, 4.0),
        "changed by OpenSSL's two"
    );

    let other = secret_file(&scene, "other");
    let settings = [("tls.resumption.secret_file", other.as_str())];
    let second = Daemon::start(&scene, broker.address(), &settings);
    connect(&mut clients, &second).await;
    assert_eq!(handshakes(&second).await, (6.0, 0.0), "another secret");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_file_the_secret_ends_with_the_process_and_it_says_so() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let mut clients = Client::all(&scene);
    let first = Daemon::start(&scene, broker.address(), &[]);
    connect(&mut clients, &first).await;
    connect(&mut clients, &first).await;
    assert_eq!(handshakes(&first).await, (6.0, 6.0));
    let said = first.stderr();
    assert_eq!(said.matches("secret_file is not set").count(), 1, "{said}");
    drop(first);
    let second = Daemon::start(&scene, broker.address(), &[]);
    connect(&mut clients, &second).await;
    assert_eq!(handshakes(&second).await, (6.0, 0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tickets_can_be_few_or_none() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    // TLS 1.2 gives one ticket whatever the number says: it is a number of 1.3.
    for (setting, resumed) in [
        (("tls.resumption.tickets", "0"), 3.0),
        (("tls.resumption.tickets", "1"), 6.0),
        (("tls.resumption.tickets", "4"), 6.0),
        (("tls.resumption.enabled", "false"), 0.0),
    ] {
        let mut clients = Client::all(&scene);
        let daemon = Daemon::start(&scene, broker.address(), &[setting]);
        connect(&mut clients, &daemon).await;
        connect(&mut clients, &daemon).await;
        assert_eq!(
            handshakes(&daemon).await,
            (12.0 - resumed, resumed),
            "{setting:?}"
        );
        for version in VERSIONS {
            let _ = std::fs::remove_file(scene.path(&format!("session-{version}.pem")));
        }
    }
}

/// OpenSSL sends a key for its first group alone, and the library does not know that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_has_to_say_hello_twice_is_resumed_as_well() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let (authority, session) = (scene.path("ca.pem"), scene.path("session.pem"));
    let flags = [
        "-tls1_3",
        "-servername",
        "localhost",
        "-groups",
        "ffdhe2048:X25519",
    ];
    for counts in [(1.0, 0.0), (1.0, 1.0), (1.0, 2.0)] {
        openssl(&daemon, &authority, &session, &flags);
        assert_eq!(handshakes(&daemon).await, counts);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_good_for_the_server_name_it_was_made_for() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    for version in VERSIONS {
        let daemon = Daemon::start(&scene, broker.address(), &[]);
        let (authority, session) = (scene.path("ca.pem"), scene.path(version));
        let named = |name| {
            openssl(
                &daemon,
                &authority,
                &session,
                &[version_flag(version), "-servername", name],
            );
        };
        named("localhost");
        let kept = std::fs::read(&session).unwrap();
        named("elsewhere.example");
        assert_eq!(handshakes(&daemon).await, (2.0, 0.0), "{version}");
        std::fs::write(&session, kept).unwrap();
        named("localhost");
        assert_eq!(handshakes(&daemon).await, (2.0, 1.0), "{version}");
    }
}

#[test]
fn a_bad_secret_file_is_a_mistake_of_the_configuration() {
    let scene = Scene::new();
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let good = secret_file(&scene, "good");
    let short = scene.write("short", "00112233445566778899aabbccddeeff\n");
    let passphrase = scene.write("passphrase", "correct horse battery staple and some more words\n");
    let open = scene.write("open", &std::fs::read_to_string(good.trim_matches('"')).unwrap());
    for (path, mode) in [(&short, 0o600), (&passphrase, 0o600), (&open, 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, said) in [
        ("short", "holds 16 bytes"),
        ("passphrase", "does not look random"),
        ("open", "can be read by others (mode 644)"),
        ("missing", "can't read"),
    ] {
        let file = format!("{:?}", scene.text_path(name));
        let settings = [
            ("tls.resumption.secret_file", file.as_str()),
            ("tls.certificate", "\"/nowhere.pem\""),
        ];
        let config = scene.write("seawall.toml", &configuration(&scene, nowhere, &settings));
        for command in ["check", "run"] {
            let (code, _, mistakes) = run(Command::new(binary()).arg(command).arg("--config").arg(&config));
            assert_eq!(code, Some(78), "{mistakes}");
            let both = mistakes.contains(said)
                && mistakes.contains("tls.resumption.secret_file")
                && mistakes.contains("/nowhere.pem");
            assert!(both, "{command} {name}: {mistakes}");
            assert!(!mistakes.contains("horse") && !mistakes.contains("00112233"));
        }
    }
    let settings = [("tls.resumption.secret_file", good.as_str())];
    let config = scene.write("seawall.toml", &configuration(&scene, nowhere, &settings));
    let (code, _, mistakes) = run(Command::new(binary()).arg("check").arg("--config").arg(&config));
    assert_eq!(code, Some(0), "{mistakes}");
}
