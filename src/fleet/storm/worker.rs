//! A process with a part of the fleet. It is the same program with the same flags; events come to its stdin, a line
//! each, and what it counts goes to its stdout.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::crew::Event;
use super::effort::Effort;
use super::threads::Threads;
use crate::fleet::swarm::{Counts, Fleet, Return};

/// How often a worker tells its counts: what a report rounds to anyway.
const TELL_EVERY: Duration = Duration::from_millis(20);
/// How often it tells its effort, in turns of [`TELL_EVERY`]: a second, as the report has it.
const EFFORT_EVERY: u32 = 50;
/// Between two looks for a worker's last words.
const LOOK: Duration = Duration::from_millis(5);
/// Longest time for them: the returns of some ten thousand devices are a megabyte.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Events on their way to a fleet; more are never sent in one go.
const MOST_EVENTS: usize = 64;

/// What a worker is told.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Event(Event),
    End,
}

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Now {
        counts: Counts,
        effort: Effort,
    },
    End {
        counts: Counts,
        effort: Effort,
        returns: Vec<Return>,
    },
}

/// A process with a part of the fleet; dropping it ends it.
#[derive(Debug)]
pub(in crate::fleet) struct Worker {
    child: Child,
    orders: Mutex<ChildStdin>,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Debug, Default)]
struct Heard {
    counts: Counts,
    effort: Effort,
    returns: Option<Vec<Return>>,
    has_ended: bool,
}

impl Worker {
    /// Starts `command`, which has to end up in [`serve`].
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A ctrl-C in the terminal is for the process that has the report.
            .process_group(0)
            .spawn()?;
        let (Some(orders), Some(said)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a process of the generator has no pipes"));
        };
        let heard = Arc::new(Mutex::new(Heard::default()));
        let worker = Self {
            child,
            orders: Mutex::new(orders),
            heard: Arc::clone(&heard),
        };
        thread::Builder::new().name("worker".into()).spawn(move || {
            for line in BufReader::new(said).lines() {
                let said = line.and_then(|line| serde_json::from_str(&line).map_err(io::Error::other));
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                match said {
                    Ok(Said::Now { counts, effort }) => {
                        heard.counts = counts;
                        heard.effort = heard.effort.with(effort);
                    }
                    Ok(Said::End {
                        counts,
                        effort,
                        returns,
                    }) => {
                        heard.counts = counts;
                        heard.effort = heard.effort.with(effort);
                        heard.returns = Some(returns);
                    }
                    Err(_) => break,
                }
            }
            heard.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        })?;
        Ok(worker)
    }

    pub(super) fn tell(&self, event: Event) -> io::Result<()> {
        self.order(&Order::Event(event))
    }

    pub(super) fn end(&self) -> io::Result<()> {
        self.order(&Order::End)
    }

    pub(super) fn counts(&self) -> Counts {
        self.heard().counts.clone()
    }

    pub(super) fn effort(&self) -> Effort {
        std::mem::take(&mut self.heard().effort)
    }

    /// An error: it has ended.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.heard().has_ended {
            return Err(io::Error::other(
                "a process of the generator has ended before its time",
            ));
        }
        Ok(())
    }

    /// After [`Self::end`].
    pub(super) async fn last_words(&self) -> io::Result<(Counts, Vec<Return>)> {
        let deadline = Instant::now() + LAST_WORDS;
        loop {
            let returns = self.heard().returns.take();
            if let Some(returns) = returns {
                return Ok((self.counts(), returns));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("a process of the generator does not answer"));
            }
            self.check()?;
            sleep(LOOK).await;
        }
    }

    fn order(&self, order: &Order) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.write_all(&line)
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends by itself when its stdin does; this is for one that can't.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other end: obeys until it is told to end, or nobody is there any more.
pub(super) async fn serve(fleet: Fleet, threads: Threads) -> io::Result<()> {
    let mut orders = orders()?;
    let mut out = io::stdout().lock();
    let mut ticks = interval(TELL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = 0_u32;
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Event(event)) => event.happen_to(&fleet),
                Some(Order::End) | None => break,
            },
            _ = ticks.tick() => {
                turn = turn.wrapping_add(1);
                let effort = turn.is_multiple_of(EFFORT_EVERY).then(|| threads.effort());
                say(&Said::Now { counts: fleet.counts(), effort: effort.unwrap_or_default() }, &mut out)?;
            }
        }
    }
    let last = Said::End {
        counts: fleet.counts(),
        effort: threads.effort(),
        returns: fleet.returns(),
    };
    say(&last, &mut out)
}

fn say(said: &Said, out: &mut impl Write) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

fn orders() -> io::Result<mpsc::Receiver<Order>> {
    let (send, receive) = mpsc::channel(MOST_EVENTS);
    thread::Builder::new().name("orders".into()).spawn(move || {
        for line in io::stdin().lines() {
            let order = line.and_then(|line| serde_json::from_str(&line).map_err(io::Error::other));
            let Ok(order) = order else { break };
            if send.blocking_send(order).is_err() {
                break;
            }
        }
    })?;
    Ok(receive)
}
