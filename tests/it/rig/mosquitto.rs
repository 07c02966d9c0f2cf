//! The real broker.

use super::PATIENCE;
use super::Scene;
use super::process::Process;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A running Mosquitto.
pub struct Mosquitto {
    process: Process,
    address: SocketAddr,
    configuration: PathBuf,
}

/// The one user of the slow broker.
pub const USERNAME: &str = "device";
pub const PASSWORD: &str = "correct horse";

/// Port clashes are rare; a few tries are enough.
const TRIES: usize = 5;

impl Mosquitto {
    /// Lets everybody in.
    pub fn start(scene: &Scene) -> Self {
        Self::with(scene, "allow_anonymous true\n")
    }

    /// Needs [`USERNAME`] and [`PASSWORD`], and spends `iterations` of PBKDF2 of its only thread on each CONNECT: it
    /// stands for a broker whose authentication service is the bottleneck.
    pub fn slow(scene: &Scene, iterations: u32) -> Self {
        let file = scene.write("passwords", &password_line(iterations));
        Self::with(
            scene,
            &format!("allow_anonymous false\npassword_file {}\n", file.display()),
        )
    }

    /// Under a supervisor that starts it again once, as systemd would; and the command that restarts it.
    pub fn supervised(scene: &Scene) -> (Self, String) {
        let id = scene.path("mosquitto.pid");
        let broker = Self::by(scene, "allow_anonymous true\n", "", |file| supervisor(file, &id));
        (broker, format!("kill $(cat {})", id.display()))
    }

    /// With further lines of configuration.
    pub fn with(scene: &Scene, lines: &str) -> Self {
        Self::listening(scene, lines, "")
    }

    /// The same with lines about its listener.
    pub fn listening(scene: &Scene, lines: &str, listener: &str) -> Self {
        Self::by(scene, lines, listener, alone)
    }

    fn by(scene: &Scene, lines: &str, listener: &str, command: impl Fn(&Path) -> Command) -> Self {
        for _ in 0..TRIES {
            let port = TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let text = format!(
                "user root\n{lines}set_tcp_nodelay true\npersistence false\nlog_dest stderr\n\
                 max_queued_messages 0\nlistener {port} 127.0.0.1\n{listener}"
            );
            let configuration = scene.write(&format!("mosquitto-{port}.conf"), &text);
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            if let Some(process) = running(&mut command(&configuration), address) {
                return Self {
                    process,
                    address,
                    configuration,
                };
            }
        }
        panic!("mosquitto found no port in {TRIES} tries");
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// SIGKILL: nobody is told, and nothing is remembered.
    pub fn crash(&mut self) {
        self.process.signal(rustix::process::Signal::KILL);
        self.process.wait(PATIENCE);
    }

    /// The same broker again, after [`Self::crash`].
    pub fn start_again(&mut self) {
        let again = running(&mut alone(&self.configuration), self.address);
        self.process = again.expect("mosquitto starts again");
    }

    /// How many sockets it has accepted, by its own log.
    pub fn connections(&self) -> usize {
        self.stderr().matches("New connection from").count()
    }
}

impl Deref for Mosquitto {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// `None`: its port was taken.
fn running(command: &mut Command, address: SocketAddr) -> Option<Process> {
    let mut process = Process::start("mosquitto", command);
    let running = process.wait_until("running broker", |process| {
        process
            .stderr()
            .lines()
            .any(|line| line.ends_with(" running"))
            .then_some(())
    });
    let serves = || TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_ok();
    (running.is_ok() && serves()).then_some(process)
}

fn alone(configuration: &Path) -> Command {
    let mut command = Command::new(program());
    command.arg("-c").arg(configuration);
    command
}

/// A shell that writes the broker's process id to the file `id`, twice. The broker ends with the shell, whatever ends that.
fn supervisor(configuration: &Path, id: &Path) -> Command {
    const TWICE: &str = r#"
        for life in first second; do
            setpriv --pdeathsig KILL "$0" -c "$1" & echo $! >"$2"
            wait
        done"#;
    let mut command = Command::new("sh");
    command.args(["-c", TWICE, program()]).arg(configuration).arg(id);
    command
}

/// Debian puts it where the path of an ordinary user does not look.
fn program() -> &'static str {
    if Path::new("/usr/sbin/mosquitto").exists() {
        "/usr/sbin/mosquitto"
    } else {
        "mosquitto"
    }
}

/// `user:$7$ITERATIONS$SALT$HASH`, as `mosquitto_passwd` writes it, which has no flag for the iterations in 2.0.11.
fn password_line(iterations: u32) -> String {
    let salt = b"seawall-salt";
    let mut hash = [0; 64];
    aws_lc_rs::pbkdf2::derive(
        aws_lc_rs::pbkdf2::PBKDF2_HMAC_SHA512,
        NonZeroU32::new(iterations).unwrap(),
        salt,
        PASSWORD.as_bytes(),
        &mut hash,
    );
    format!("{USERNAME}:$7${iterations}${}${}\n", base64(salt), base64(&hash))
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().enumerate().fold(0, |bits, (place, byte)| {
            bits | u32::from(*byte) << (16 - 8 * place)
        });
        for place in 0..4 {
            let index = (bits >> (18 - 6 * place)) & 0x3F;
            text.push(if place <= three.len() {
                char::from(ALPHABET[index as usize])
            } else {
                '='
            });
        }
    }
    text
}
