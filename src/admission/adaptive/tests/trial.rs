//! Laws in virtual time on models of brokers.

mod rivals;

use std::collections::BinaryHeap;
use std::fmt::Write as _;

use self::rivals::{Aimd, Gradient2, Pid, Vegas};
use super::super::Adaptive;
use crate::admission::bucket::{Bucket, Tokens};
use crate::moment::Moment;

/// A broker: so many servers behind one queue, each taking `service` seconds, give or take `spread` of it (1:
/// exponential).
#[derive(Clone, Copy, Debug)]
pub(super) struct Backend {
    pub servers: usize,
    pub service: f64,
    pub spread: f64,
}

/// Single-threaded Mosquitto with slow passwords; the same with irregular work; an authentication service with 20 workers;
/// the same, irregular; a broker that is faster than anybody comes.
pub(super) const BROKERS: [(&str, Backend); 5] = [
    (
        "one server, 80/s",
        Backend {
            servers: 1,
            service: 0.0125,
            spread: 0.1,
        },
    ),
    (
        "one server, 80/s, exponential",
        Backend {
            servers: 1,
            service: 0.0125,
            spread: 1.0,
        },
    ),
    (
        "20 workers, 200/s",
        Backend {
            servers: 20,
            service: 0.1,
            spread: 0.1,
        },
    ),
    (
        "20 workers, 200/s, exponential",
        Backend {
            servers: 20,
            service: 0.1,
            spread: 1.0,
        },
    ),
    (
        "4 workers, 2000/s",
        Backend {
            servers: 4,
            service: 0.002,
            spread: 0.3,
        },
    ),
];

/// A way to find window and rate.
pub(super) trait Law {
    fn window(&self) -> f64;
    fn rate(&self) -> f64;
    /// Seconds; `in_flight` with this one.
    fn answered(&mut self, latency: f64, in_flight: u32, now: f64);
}

/// What a law made of a broker.
#[derive(Debug)]
pub(super) struct Figures {
    /// Of the broker's capacity, after the first second.
    pub used: f64,
    /// CONNECTs in the broker above its servers: what a message of a connected client waits behind, in services.
    pub excess_p99: f64,
}

pub(super) struct Trial {
    pub backend: Backend,
    random: fastrand::Rng,
    now: f64,
    /// (end, begin), the earliest end on top.
    working: BinaryHeap<std::cmp::Reverse<(u64, u64)>>,
    queue: std::collections::VecDeque<f64>,
    bucket: Bucket,
}

impl Trial {
    pub(super) fn new(backend: Backend) -> Self {
        Self {
            backend,
            random: fastrand::Rng::with_seed(11),
            now: 0.0,
            working: BinaryHeap::new(),
            queue: std::collections::VecDeque::new(),
            bucket: Bucket::new(200.0, Tokens::new(200.0), Moment::ZERO),
        }
    }

    pub(super) fn of(backend: Backend, law: &mut impl Law, seconds: f64) -> Figures {
        Self::new(backend).run(law, seconds)
    }

    /// Somebody always waits.
    pub(super) fn run(&mut self, law: &mut impl Law, seconds: f64) -> Figures {
        let (begin, end) = (self.now, self.now + seconds);
        let (mut answers, mut excess) = (0_u32, Vec::new());
        while self.now < end {
            self.fill(law);
            let answer = self
                .working
                .peek()
                .map_or(f64::MAX, |std::cmp::Reverse((end, _))| *end as f64 / 1e9);
            let full = f64::from(self.in_flight()) >= law.window().floor();
            let token = self
                .bucket
                .available_at(Tokens::new(1.0), Tokens::NONE, moment(self.now))
                .as_nanos() as f64
                / 1e9;
            if !full && token < answer {
                self.now = token.max(self.now + 1e-9);
                continue;
            }
            self.now = answer;
            let in_flight = self.in_flight();
            let Some(std::cmp::Reverse((_, sent))) = self.working.pop() else {
                continue;
            };
            law.answered(self.now - sent as f64 / 1e9, in_flight, self.now);
            if let Some(sent) = self.queue.pop_front() {
                self.start(sent);
            }
            if self.now > begin + 1.0 {
                answers += 1;
                excess.push(in_flight.saturating_sub(self.backend.servers as u32));
            }
        }
        excess.sort_unstable();
        let capacity = self.backend.servers as f64 / self.backend.service;
        Figures {
            used: f64::from(answers) / (seconds - 1.0) / capacity,
            excess_p99: excess
                .get(excess.len() * 99 / 100)
                .copied()
                .map_or(0.0, f64::from),
        }
    }

    fn fill(&mut self, law: &impl Law) {
        let burst = Tokens::new(law.rate().clamp(1.0, 200.0));
        self.bucket.reconfigure(law.rate(), burst, moment(self.now));
        while f64::from(self.in_flight()) < law.window().floor().max(1.0)
            && self.bucket.take(Tokens::new(1.0), moment(self.now))
        {
            if self.working.len() < self.backend.servers {
                self.start(self.now);
            } else {
                self.queue.push_back(self.now);
            }
        }
    }

    fn start(&mut self, sent: f64) {
        let Backend { service, spread, .. } = self.backend;
        let length = if spread >= 1.0 {
            -service * (1.0 - self.random.f64()).ln()
        } else {
            service * (1.0 + spread * (2.0 * self.random.f64() - 1.0))
        };
        self.working.push(std::cmp::Reverse((
            ((self.now + length) * 1e9) as u64,
            (sent * 1e9) as u64,
        )));
    }

    fn in_flight(&self) -> u32 {
        (self.working.len() + self.queue.len()) as u32
    }
}

fn moment(seconds: f64) -> Moment {
    Moment::from_nanos((seconds * 1e9) as u64)
}

impl Law for Adaptive {
    fn window(&self) -> f64 {
        f64::from(self.window())
    }

    fn rate(&self) -> f64 {
        self.rate()
    }

    fn answered(&mut self, latency: f64, in_flight: u32, now: f64) {
        self.answered(
            0,
            std::time::Duration::from_secs_f64(latency.max(0.0)),
            in_flight >= self.window(),
            moment(now),
        );
    }
}

/// At least nine tenths of the capacity used, and no queue to speak of in the broker: a few for a single server, less
/// than one a worker for many.
pub(super) fn is_good(backend: Backend, figures: &Figures) -> bool {
    figures.used >= 0.9 && figures.excess_p99 <= (backend.servers as f64 * 0.75).max(5.0)
}

/// Used capacity and excess in the broker, for every law on every broker; and which laws are good on all.
pub(super) fn table() -> (String, [bool; 5]) {
    let mut table =
        String::from("| broker | AIMD | Vegas | Gradient2 | PID | ours |\n|---|---|---|---|---|---|\n");
    let mut good = [true; 5];
    for (name, backend) in BROKERS {
        let row = [
            Trial::of(
                backend,
                &mut Aimd {
                    window: 1.0,
                    cut: 0.0,
                },
                60.0,
            ),
            Trial::of(
                backend,
                &mut Vegas {
                    window: 1.0,
                    fastest: f64::MAX,
                },
                60.0,
            ),
            Trial::of(
                backend,
                &mut Gradient2 {
                    window: 1.0,
                    short: 0.0,
                    long: 0.0,
                },
                60.0,
            ),
            Trial::of(backend, &mut Pid { rate: 5.0, last: 0.0 }, 60.0),
            Trial::of(backend, &mut super::fresh(), 60.0),
        ];
        line(&mut table, name, &row);
        for (good, figures) in good.iter_mut().zip(&row) {
            *good &= is_good(backend, figures);
        }
    }
    let row = [
        halved(&mut Aimd {
            window: 1.0,
            cut: 0.0,
        }),
        halved(&mut Vegas {
            window: 1.0,
            fastest: f64::MAX,
        }),
        halved(&mut Gradient2 {
            window: 1.0,
            short: 0.0,
            long: 0.0,
        }),
        halved(&mut Pid { rate: 5.0, last: 0.0 }),
        halved(&mut super::fresh()),
    ];
    line(&mut table, "one server, halved for 20 s of 60", &row);
    (table, good)
}

fn line(table: &mut String, name: &str, row: &[Figures]) {
    let _ = write!(table, "| {name} |");
    for figures in row {
        let _ = write!(
            table,
            " {:.0} %, {:.0} |",
            figures.used * 100.0,
            figures.excess_p99
        );
    }
    table.push('\n');
}

fn halved(law: &mut impl Law) -> Figures {
    let (_, single) = BROKERS[0];
    let mut trial = Trial::new(single);
    let mut parts = Vec::new();
    for factor in [1.0, 2.0, 1.0] {
        trial.backend.service = single.service * factor;
        parts.push(trial.run(law, 20.0));
    }
    Figures {
        used: parts.iter().map(|part| part.used).sum::<f64>() / 3.0,
        excess_p99: parts.iter().map(|part| part.excess_p99).fold(0.0, f64::max),
    }
}
