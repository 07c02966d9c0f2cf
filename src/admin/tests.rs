//! Raw HTTP over a real socket.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::admission::breaker::State as Breaker;
use crate::telemetry::ending::Phase;

struct Daemon {
    ready: Mutex<Result<(), NotReady>>,
    panics: bool,
}

impl State for Daemon {
    fn snapshot(&self) -> Snapshot {
        assert!(!self.panics, "a page's panic, on purpose");
        Snapshot {
            rate: 50.0,
            tokens: 12.5,
            in_flight: 3,
            held: 4,
            ..Snapshot::default()
        }
    }

    fn ready(&self) -> Result<(), NotReady> {
        *self.ready.lock().unwrap()
    }

    fn troubles(&self) -> BTreeMap<String, String> {
        let why = "its certificate is signed by no authority".to_owned();
        BTreeMap::from([("unix:/run/mqtt".to_owned(), why)])
    }
}

struct Admin {
    handle: Handle,
    metrics: Arc<Metrics>,
    daemon: Arc<Daemon>,
}

fn admin(panics: bool) -> Admin {
    let listener = listen(&Settings {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        guard: Guard::default(),
    })
    .unwrap();
    let metrics = Metrics::new(&["127.0.0.1:1883".to_owned(), "unix:/run/mqtt".to_owned()], &[]).unwrap();
    let daemon = Arc::new(Daemon {
        ready: Mutex::new(Ok(())),
        panics,
    });
    let handle = start(
        listener,
        Arc::clone(&metrics),
        Arc::clone(&daemon) as _,
        Arc::default(),
        Instant::now(),
    )
    .unwrap();
    Admin {
        handle,
        metrics,
        daemon,
    }
}

struct Answer {
    head: String,
    body: String,
}

impl Answer {
    fn code(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

impl Admin {
    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.handle.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    fn send(&self, request: &str) -> Answer {
        let mut socket = self.connect();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Answer {
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n"))
    }
}

#[test]
fn metrics_are_served_in_the_text_format_with_the_controllers_figures() {
    let admin = admin(false);
    let guard = admin.metrics.enter(Phase::Held);
    let answer = admin.get("/metrics");
    assert_eq!(answer.code(), "200");
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    for line in [
        "seawall_admission_rate 50",
        "seawall_admission_tokens 12.5",
        "seawall_upstream_in_flight 3",
        "seawall_connections_open{phase=\"held\"} 1",
        "seawall_upstream_up{server=\"unix:/run/mqtt\"} 1",
    ] {
        assert!(
            answer.body.lines().any(|found| found == line),
            "{line} is missing in\n{}",
            answer.body
        );
    }
    drop(guard);
}

#[test]
fn health_is_unconditional_and_readiness_says_why_not() {
    let admin = admin(false);
    for (state, code, body) in [
        (Ok(()), "200", "ready\n"),
        (Err(NotReady::Draining), "503", "draining\n"),
        (Err(NotReady::NoBroker), "503", "no broker is usable\n"),
    ] {
        *admin.daemon.ready.lock().unwrap() = state;
        let answer = admin.get("/readyz");
        assert_eq!((answer.code(), answer.body.as_str()), (code, body));
        assert_eq!(admin.get("/healthz").code(), "200");
    }
}

#[test]
fn status_is_json_with_the_same_figures() {
    let admin = admin(false);
    admin.metrics.accepted();
    admin.metrics.upstream(1, false, Breaker::Open);
    *admin.daemon.ready.lock().unwrap() = Err(NotReady::Draining);
    let answer = admin.get("/status?pretty");
    assert_eq!(
        (answer.code(), answer.header("content-type")),
        ("200", Some("application/json"))
    );
    let status: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&status["ready"], &status["not_ready"]),
        (&false.into(), &"draining".into())
    );
    assert_eq!(status["connections"]["relaying"], 0);
    assert_eq!(status["admission"]["tokens"], 12.5);
    assert_eq!(status["admission"]["held"], 4);
    assert_eq!(
        status["upstreams"][1],
        serde_json::json!({
            "server": "unix:/run/mqtt",
            "up": false,
            "trouble": "its certificate is signed by no authority",
        })
    );
    let reached = serde_json::json!({"server": "127.0.0.1:1883", "up": true});
    assert_eq!(status["upstreams"][0], reached);
    assert_eq!(status["totals"]["connections"], 1);
    assert_eq!(status["totals"]["refused"]["hold-full"], 0);
}

#[test]
fn other_paths_and_methods_are_turned_down() {
    let admin = admin(false);
    for (request, code) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "200"),
        ("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        (
            "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            "405",
        ),
        ("DELETE /nothing HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("not http at all\r\n\r\n", "400"),
    ] {
        assert_eq!(admin.send(request).code(), code, "{request:?}");
    }
    let refused = admin.send("PUT /status HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(refused.header("allow"), Some("GET, HEAD"));
    let head = admin.send("HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(
        (head.code(), head.body.as_str(), head.header("content-length")),
        ("200", "", Some("3"))
    );
}

#[test]
fn the_live_page_comes_with_its_policy_and_who_does_not_read_its_events_is_let_go() {
    let admin = admin(false);
    let answer = admin.get("/");
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = answer.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(admin.get("/status").header("content-security-policy"), None);

    let pages = Pages {
        metrics: Arc::clone(&admin.metrics),
        state: Arc::clone(&admin.daemon) as _,
        access: Arc::default(),
        started: Instant::now(),
        live_page: LivePage::new(),
    };
    let live = live::Live::default();
    let mut idle = live.watch(&pages).unwrap();
    for _ in 0..1000 {
        live.look(&pages);
    }
    let waiting = std::iter::from_fn(|| idle.try_recv().ok()).count();
    assert_eq!((waiting, idle.is_closed()), (4, true));
    let history = live.watch(&pages).unwrap().try_recv().unwrap();
    let data = std::str::from_utf8(&history).unwrap().lines().nth(1).unwrap();
    let history: serde_json::Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(history["seconds"].as_array().unwrap().len(), 900);
}

#[test]
fn a_client_that_closes_its_half_after_the_request_is_answered() {
    let admin = admin(false);
    let mut socket = admin.connect();
    socket.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
}

#[test]
fn a_page_that_panics_answers_500_and_the_next_request_is_served() {
    let admin = admin(true);
    assert_eq!(admin.get("/metrics").code(), "500");
    assert_eq!(admin.get("/status").code(), "500");
    assert_eq!(admin.get("/healthz").code(), "200");
}

#[test]
fn who_is_silent_makes_room_the_longest_first_and_delays_no_probe() {
    let admin = admin(false);
    let idle: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut socket = admin.connect();
            if number % 2 == 1 {
                // As silent as the others: a request is one when it is whole.
                socket.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
            }
            socket
        })
        .collect();
    let begun = Instant::now();
    assert_eq!(admin.get("/healthz").code(), "200");
    // Far below the time for a header.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // 136 have made room for the others, and one for the probe.
    let mut idle = idle.into_iter();
    for mut socket in idle.by_ref().take(137) {
        assert!(
            matches!(socket.read(&mut [0; 64]), Ok(0) | Err(_)),
            "an older one is closed"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    for (mut socket, number) in idle.zip(137..) {
        let line: &[u8] = if number % 2 == 1 {
            b""
        } else {
            b"GET /healthz HTTP/1.1\r\n"
        };
        socket
            .write_all(&[line, b"Host: admin\r\n\r\n"].concat())
            .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn dropping_the_handle_frees_the_port_and_a_taken_port_is_named() {
    let admin = admin(false);
    let address = admin.handle.address();
    let error = listen(&Settings {
        address,
        guard: Guard::default(),
    })
    .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("can't listen on admin.address {address}: ")),
        "{error}"
    );
    drop(admin);
    assert!(TcpStream::connect(address).is_err());
}
