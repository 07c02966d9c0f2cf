//! Composition: configuration → parts → running → drained.

mod aside;
mod budget;
mod descriptors;
mod error;
mod parts;
mod reload;
mod service;
mod signals;
mod sockets;
mod takeover;
mod tls;
mod watch;
mod watched;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::time::sleep;

pub use self::error::StartError;
use self::parts::Parts;
use self::reload::{Reloader, Seen};
use self::service::Service;
pub use self::signals::Signals;
use self::sockets::Sockets;
pub use self::sockets::activated;
use self::takeover::Predecessor;
use self::tls::Tls;
use crate::admin::{self, Access};
use crate::admission::{Share, breaker};
use crate::config::{Config, Sources};
use crate::connection::House;
use crate::door::Door;
use crate::drain::{self, Tasks};
use crate::gate::Gate;
use crate::listener::{self, Places};
use crate::telemetry::audit::{self, Audit, Change};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::{Telemetry, log};
use crate::tls::pool::Pool;
use crate::upstream::Brokers;

/// How long a drain waits for those who are leaving: a second for the end of a packet, 2 s for the broker's close, 5 s for
/// a peer that does not close its side, and one more. Who has not sent its CONNECT by then is not waited for either.
const DRAIN_GRACE: Duration = Duration::from_secs(9);
/// How often a drain looks whether everybody has left.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// How long tasks get to notice that they were told to stop.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every connection was closed in order.
    Drained,
    /// A second signal cut the drain short.
    CutShort,
}

/// A running daemon.
pub struct Running {
    addresses: Vec<SocketAddr>,
    admin_address: SocketAddr,
    /// `None`: another process answers there now.
    admin: Option<admin::Handle>,
    parts: Arc<Parts>,
    reloader: Option<Reloader>,
    /// Whether it shares its budget with no replicas: these take two processes for two of them by themselves.
    alone: bool,
    /// Who ran before, until it is told that we do.
    predecessor: Option<Predecessor>,
    /// Where the next one asks, and what it is given.
    takeover: Option<(PathBuf, Vec<(SocketAddr, OwnedFd)>)>,
}

/// Runs the daemon until a signal ends it, or another process takes over: the whole of `seawall run`. Bound addresses
/// and `ready` go to `out`. `config` was read from `sources`, from which a reload reads it again; `log` goes by it;
/// `activated` are the sockets of the service manager, and `signals` were caught before anything else was done.
pub async fn run(
    config: Config,
    sources: Sources,
    log: log::Handle,
    activated: Vec<std::net::TcpListener>,
    signals: Signals,
    out: &mut impl Write,
) -> Result<Ended, StartError> {
    let mut ends = signals.ends;
    let service = Arc::new(Service::of_process());
    let mut running = tokio::select! {
        begun = begin(config, activated) => begun?,
        // Nobody was let in yet.
        () = ends.next() => return Ok(Ended::Drained),
    };
    running.keep_fresh(signals.hangups, sources, log, &service);
    // Whoever started us may have closed the pipe: no reason to stop serving.
    let _ = running.announce(out);
    service.ready();
    let telling = Arc::clone(&service).keep_telling(Arc::clone(&running.parts));
    running.parts.tasks.spawn_until_stopped(telling);
    // Before the one before us is gone: there is always somebody to be asked.
    let mut successors = pin!(running.successors());
    running.let_predecessor_go();

    let mut handed_over = false;
    tokio::select! {
        () = ends.next() => {}
        () = &mut successors => handed_over = true,
    }
    service.stopping(running.parts.house.drain().spread + DRAIN_GRACE + STOP_LIMIT);
    running.tell("draining");
    let ended = tokio::select! {
        () = running.drain() => Ended::Drained,
        () = ends.next() => Ended::CutShort,
        // Who is told to end still hands over to who comes.
        never = async {
            if !handed_over {
                successors.await;
            }
            std::future::pending().await
        } => never,
    };
    running.tell(match ended {
        Ended::Drained => "drained",
        Ended::CutShort => "cut short",
    });
    running
        .parts
        .house
        .telemetry()
        .audit()
        .inspect(|audit| audit.close());
    Ok(ended)
}

/// Builds the parts of `config` and starts them.
pub async fn start(config: Config) -> Result<Running, StartError> {
    begin(config, Vec::new()).await
}

async fn begin(config: Config, activated: Vec<std::net::TcpListener>) -> Result<Running, StartError> {
    let started = Instant::now();
    let descriptors = listener::raise_descriptor_limit();
    let seen = Seen::of(&Sources::default(), &config);
    let tls = Tls::load(&config).map_err(StartError::Tls)?;
    let access = Access::load(&config.admin.guard).map_err(StartError::Access)?;
    if let Some(warning) = config.admin.warning() {
        tracing::warn!("{warning}");
    }
    if let Some(advice) = config.tls.advice() {
        tracing::info!("{advice}");
    }
    let asked = match &config.listen.takeover {
        Some(path) => takeover::ask(path).await?,
        None => None,
    };
    let (predecessor, handed) = asked.unzip();
    let is_activated = !activated.is_empty();
    let handed = if is_activated {
        activated
    } else {
        handed.unwrap_or_default()
    };
    let sockets = Sockets::open(&config, handed, is_activated)?;
    let addresses = sockets.addresses()?;
    let takeover = match &config.listen.takeover {
        Some(path) => Some((path.clone(), sockets.copies()?)),
        None => None,
    };
    // All that takes time before all that only one process can have.
    let parts = build(&config, &tls, access, descriptors).await?;
    let predecessor = match predecessor {
        Some(predecessor) => predecessor.take().await?,
        None => None,
    };
    if let Some(audit) = config.audit.clone() {
        let audit = Audit::start(audit, Arc::clone(&parts.metrics))?;
        parts.house.telemetry().replace_audit(Some(audit));
    }
    let alone = config.shared_budget.is_none();
    if alone && predecessor.is_some() {
        parts.door.set_share(takeover::BOTH);
    }
    let tasks = &parts.tasks;
    let (breakers, house) = (Arc::clone(&parts.door), Arc::clone(&parts.house));
    let may_probe = move |server| breakers.breaker(server) != breaker::State::Open;
    tasks.spawn_until_stopped(Arc::clone(&parts.gate).release_waiting());
    tasks.spawn_until_stopped(Arc::clone(&parts.door).release_held());
    tasks.spawn_until_stopped(watch::watch(Arc::clone(&parts)));
    tasks.spawn_until_stopped(Arc::clone(&parts.brokers).keep_looking_up());
    tasks.spawn_until_stopped(Arc::clone(&parts.brokers).keep_probing(move || house.probing(), may_probe));
    for listener in sockets.clients {
        accept(listener, &parts);
    }
    let (metrics, state) = (Arc::clone(&parts.metrics), Arc::clone(&parts));
    let access = Arc::clone(&parts.access);
    let admin = admin::start(sockets.admin, metrics, state, access, started)?;
    descriptors::suffice(parts.descriptors)?;
    Ok(Running {
        addresses,
        admin_address: admin.address(),
        admin: Some(admin),
        reloader: Some(Reloader::new(Arc::clone(&parts), config, seen, tls)),
        parts,
        alone,
        predecessor,
        takeover,
    })
}

async fn build(
    config: &Config,
    tls: &Tls,
    access: Access,
    descriptors: u64,
) -> Result<Arc<Parts>, StartError> {
    let servers = config.upstream.servers.iter();
    let servers: Vec<String> = servers.map(|server| server.name.clone()).collect();
    let lanes = config.admission.lanes.iter();
    let lanes: Vec<String> = lanes.map(|lane| lane.name.clone()).collect();
    let metrics = Metrics::new(&servers, &lanes)?;
    metrics.configured(config.agreement());
    let telemetry = Telemetry::new(Arc::clone(&metrics));
    let tasks = Tasks::new();
    let gate = Gate::new(&config.gate, config.sources);
    let pool = Arc::new(Pool::start()?);
    let door = Door::new(config.admission.clone());
    budget::join(config.shared_budget.as_ref(), &door, &metrics, &tasks).await?;
    let brokers = Brokers::new(&config.upstream.servers);
    brokers.look_up_in_time().await;
    let places = Places::new(parts::places(config.listen.max_connections, descriptors));
    let house = House::new(
        parts::rules(config, tls.clone()),
        Arc::clone(&gate),
        pool,
        Arc::clone(&door),
        Arc::clone(&brokers),
        telemetry,
        tasks.clone(),
    );
    Ok(Arc::new(Parts {
        gate,
        door,
        brokers,
        places,
        house,
        metrics,
        tasks,
        access: Arc::new(ArcSwap::from_pointee(access)),
        handed_over: tokio::sync::watch::Sender::new(false),
        descriptors,
    }))
}

fn accept(listener: TcpListener, parts: &Parts) {
    let serving = Arc::clone(&parts.house);
    let connections = parts.tasks.clone();
    let serve = move |socket, source, place| {
        let house = Arc::clone(&serving);
        let accepted = tokio::time::Instant::now();
        // Called in here: a life that is brought along takes its room in the task twice.
        connections.spawn(async move {
            house.serve(socket, source, accepted).await;
            drop(place);
        });
    };
    let (house, draining) = (Arc::clone(&parts.house), parts.tasks.clone());
    let closing = async move {
        draining.draining().await;
        if house.drain().listener == drain::Listener::Answer {
            std::future::pending::<()>().await;
        }
    };
    let accepting = listener::accept(
        listener,
        Arc::clone(&parts.places),
        Arc::clone(&parts.metrics),
        serve,
        closing,
    );
    let mut handed_over = parts.handed_over.subscribe();
    parts.tasks.spawn_until_stopped(async move {
        tokio::select! {
            () = accepting => {}
            // Who is in the queue by then is the other process's.
            _ = handed_over.wait_for(|is| *is) => {}
        }
    });
}

impl Running {
    /// Where clients connect, with the real port where 0 was asked for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where the admin pages are.
    pub fn admin(&self) -> SocketAddr {
        self.admin_address
    }

    /// The door, for figures.
    pub fn door(&self) -> &Arc<Door> {
        &self.parts.door
    }

    /// The metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.metrics
    }

    /// Reads `sources` again on each of `hangups`, and files when they have changed.
    fn keep_fresh(&mut self, hangups: Signal, sources: Sources, log: log::Handle, service: &Arc<Service>) {
        if let Some(reloader) = self.reloader.take() {
            let reloader = reloader.from(sources, Some(log), service);
            self.parts.tasks.spawn_until_stopped(reloader.run(hangups));
        }
    }

    /// Tells whoever started us where we listen, a line each, then that we do.
    fn announce(&self, out: &mut impl Write) -> io::Result<()> {
        for address in &self.addresses {
            writeln!(out, "listening {address}")?;
        }
        writeln!(out, "admin {}", self.admin())?;
        writeln!(out, "ready")?;
        out.flush()
    }

    /// The one before us may go; until it has let in who was on his way, the budget is shared with it.
    fn let_predecessor_go(&mut self) {
        if let Some(predecessor) = self.predecessor.take() {
            let (parts, alone) = (Arc::clone(&self.parts), self.alone);
            self.parts.tasks.spawn_until_stopped(async move {
                predecessor.release().await;
                // Who was taken over from meanwhile shares with the next one.
                if alone && !*parts.handed_over.borrow() {
                    parts.door.set_share(Share::WHOLE);
                }
            });
        }
    }

    /// Ready when another process has taken over, and what was begun before is done. Without `listen.takeover`: never.
    fn successors(&mut self) -> impl Future<Output = ()> + use<> {
        let door = self
            .takeover
            .take()
            .map(|(path, sockets)| takeover::Door::open(&path, sockets));
        takeover::hand_over(door, Arc::clone(&self.parts), self.admin.take(), self.alone)
    }

    /// Tells log and audit how far the drain has come.
    fn tell(&self, state: &'static str) {
        let connections = self.parts.places.taken();
        tracing::info!(connections, "{state}");
        if let Some(audit) = self.parts.house.telemetry().audit() {
            let mut details = audit::details(&[("state", state)]);
            details.insert("connections".to_owned(), connections.into());
            audit.change(Change::Drain, details);
        }
    }

    /// Closes every connection in order, evenly over `drain.spread`, and ends when the last is gone or the limit is
    /// reached. Newcomers are answered "draining" until then.
    pub async fn drain(&self) {
        let (tasks, house) = (&self.parts.tasks, &self.parts.house);
        tasks.drain();
        let spread = house.drain().spread;
        tokio::select! {
            () = tasks.give_notices(spread) => {}
            () = self.emptied(spread) => {}
        }
        tasks.stop();
        tasks.ended(STOP_LIMIT).await;
    }

    /// Ready when everybody has left, or those who have not had their time to.
    async fn emptied(&self, spread: Duration) {
        let begun = tokio::time::Instant::now();
        let mut limit = begun + DRAIN_GRACE;
        while self.parts.places.taken() > 0 && tokio::time::Instant::now() < limit {
            if self.parts.tasks.without_notice() > 0 {
                limit = (tokio::time::Instant::now() + DRAIN_GRACE).min(begun + spread + DRAIN_GRACE);
            }
            sleep(DRAIN_LOOK).await;
        }
    }
}
