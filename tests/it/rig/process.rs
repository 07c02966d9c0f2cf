//! A child process whose output is collected, and what the kernel says of it.

use super::PATIENCE;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// `USER_HZ`, which Linux shows to programs whatever it is compiled with.
const TICKS_PER_SECOND: u64 = 100;

/// Ends by its own process id when it is dropped; shows what it wrote to stderr when that is by a failing test.
pub struct Process {
    name: &'static str,
    child: Child,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
}

impl Process {
    pub fn start(name: &'static str, command: &mut Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        Self {
            name,
            child,
            stdout,
            stderr,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&self) -> String {
        self.stdout.lock().unwrap().clone()
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_raw(self.id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Waits for its end.
    pub fn wait(&mut self, patience: Duration) -> ExitStatus {
        let from = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                from.elapsed() < patience,
                "{} does not end within {patience:?}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until `look` finds in the process' output what it looks for, a little at a time.
    pub fn wait_until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, ExitStatus> {
        let from = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if let Some(status) = self.ended() {
                return Err(status);
            }
            assert!(
                from.elapsed() < PATIENCE,
                "{}: no {what} within {PATIENCE:?}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Open descriptors, from `/proc`.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id()))
            .unwrap()
            .count()
    }

    /// Processor time used so far, user and system.
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // The name in parentheses may hold blanks; utime and stime are fields 14 and 15 of proc(5), in ticks.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let ended = self.child.try_wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let how = if let Ok(Some(status)) = ended {
                format!("{status}")
            } else {
                "was running".to_owned()
            };
            eprintln!(
                "--- {} ({how}), stderr:\n{}\n---",
                self.name,
                last_lines(&self.stderr(), 60)
            );
        }
    }
}

/// How a short-lived program ended, and what it wrote.
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// It ended with this code, said all of these words, and did not panic.
    #[track_caller]
    pub fn expect(&self, code: i32, words: &[&str]) {
        let all = format!("{}{}", self.stdout, self.stderr);
        assert_eq!(self.code, Some(code), "{all}");
        for word in words {
            assert!(all.contains(word), "no {word:?} in {all:?}");
        }
        assert!(!all.contains("panicked"), "{all}");
    }
}

/// Runs a program to its end.
pub fn run(name: &'static str, command: &mut Command, patience: Duration) -> Finished {
    let mut process = Process::start(name, command);
    let status = process.wait(patience);
    // The collectors see the end of the pipes a moment later.
    std::thread::sleep(Duration::from_millis(30));
    Finished {
        code: status.code(),
        stdout: process.stdout(),
        stderr: process.stderr(),
    }
}

fn collect(pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let collected = Arc::clone(&text);
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            collected
                .lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    });
    text
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
