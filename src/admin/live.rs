//! What the live page shows: the last 15 minutes second by second, and everything else as it is now. Looked at once a
//! second on the admin thread, whether somebody is watching or not, so that a page opened in the storm shows its
//! beginning.

mod view;

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use hyper::body::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;

use self::view::{Look, View};
use super::Pages;
use crate::moment::Moment;
use crate::telemetry::metrics::Totals;
use crate::telemetry::storm::{Storm, Told};
use crate::telemetry::wall_clock;

/// How often is looked.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Seconds that the chart shows: 15 minutes, the time in which 200,000 devices come in at 200 a second. 29 kB.
const HISTORY: usize = 900;
/// Looks that are kept whole, for what is counted over the last minute.
const RECENT: usize = 61;
/// Browsers that watch at a time, of the 64 connections that the admin side takes.
const MOST_WATCHERS: usize = 16;
/// Events that wait for one of them: a browser that is four seconds behind does not read.
const MOST_WAITING: usize = 4;

/// One second: accepted sockets, admitted, refused and shed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Second(u64, u64, u64, u64);

/// The looks so far, and who wants to be told of the next.
#[derive(Default)]
pub(super) struct Live(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    storm: Storm,
    history: VecDeque<Second>,
    recent: VecDeque<Look>,
    watchers: Vec<mpsc::Sender<Bytes>>,
}

#[derive(Serialize)]
struct History<'a> {
    seconds: &'a VecDeque<Second>,
}

impl Live {
    /// Looks, tells the log of storms and the watchers of everything.
    pub(super) fn look(&self, pages: &Pages) {
        let now = Moment::ZERO + pages.started.elapsed();
        let look = Look::at(pages, now);
        let mut inner = self.lock();
        let told = inner.storm.look(&look.totals, now);
        // Not when one begins: its first wave is part of it.
        if matches!(told, Some(Told::Calm | Told::Over(..))) {
            pages.metrics.crowd().forget();
        }
        if let Some(told) = told {
            tell(&told, pages);
        }
        inner.keep(look);
        if inner.watchers.is_empty() {
            return;
        }
        let event = inner.now(pages, now);
        // Who does not take it is gone, or does not read.
        inner
            .watchers
            .retain(|watcher| watcher.try_send(event.clone()).is_ok());
    }

    /// The history at once, and from then on what is looked at; `None`: too many watch.
    pub(super) fn watch(&self, pages: &Pages) -> Option<mpsc::Receiver<Bytes>> {
        let mut inner = self.lock();
        inner.watchers.retain(|watcher| !watcher.is_closed());
        if inner.watchers.len() >= MOST_WATCHERS {
            return None;
        }
        let (watcher, events) = mpsc::channel(MOST_WAITING);
        let history = History {
            seconds: &inner.history,
        };
        let now = inner.now(pages, Moment::ZERO + pages.started.elapsed());
        for event in [event("history", &history), now] {
            watcher.try_send(event).ok()?;
        }
        inner.watchers.push(watcher);
        Some(events)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn keep(&mut self, look: Look) {
        if let Some(before) = self.recent.back() {
            let second = second(&before.totals, &look.totals);
            keep(&mut self.history, second, HISTORY);
        }
        keep(&mut self.recent, look, RECENT);
    }

    fn now(&self, pages: &Pages, now: Moment) -> Bytes {
        let unix = wall_clock()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let second = self.history.back().copied().unwrap_or_default();
        let since = self.storm.since().map(|since| (now - since).as_secs());
        event("now", &View::of(pages, &self.recent, second, since, unix))
    }
}

fn second(before: &Totals, now: &Totals) -> Second {
    let sum = |totals: &Totals| {
        Second(
            totals.connections,
            totals.decisions.get("admitted").copied().unwrap_or(0),
            totals.refused.values().sum(),
            totals.shed.values().sum(),
        )
    };
    let (before, now) = (sum(before), sum(now));
    Second(
        now.0.saturating_sub(before.0),
        now.1.saturating_sub(before.1),
        now.2.saturating_sub(before.2),
        now.3.saturating_sub(before.3),
    )
}

fn keep<T>(ring: &mut VecDeque<T>, newest: T, most: usize) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(newest);
}

/// As `EventSource` reads it: <https://html.spec.whatwg.org/multipage/server-sent-events.html>.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    match serde_json::to_string(data) {
        Ok(data) => Bytes::from(format!("event: {name}\ndata: {data}\n\n")),
        Err(error) => {
            tracing::error!(%error, "an event of the live page can't be written");
            Bytes::from_static(b": an event can't be written\n\n")
        }
    }
}

/// A line at the beginning of a storm, one every ten seconds, one at its end: no client can cause more.
fn tell(told: &Told, pages: &Pages) {
    let outside = pages.metrics.crowd().outside();
    match told {
        Told::Calm => {}
        Told::Begun(summary) => tracing::info!(
            admitted = summary.admitted,
            turned_away = summary.turned_away(),
            "a storm has begun: {}",
            summary.words()
        ),
        Told::Goes(summary) => tracing::info!(
            admitted = summary.admitted,
            turned_away = summary.turned_away(),
            outside,
            "in the last 10 s: {}",
            summary.words()
        ),
        Told::Over(summary, lasted) => tracing::info!(
            admitted = summary.admitted,
            turned_away = summary.turned_away(),
            lasted_s = lasted.as_secs(),
            "the storm is over: {}",
            summary.words()
        ),
    }
}
