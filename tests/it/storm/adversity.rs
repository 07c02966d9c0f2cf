//! Storms in which the broker itself does not keep still.

use super::broker::{CAPACITY, answered, broker_of_the_capacity, halve};
use super::course::Course;
use super::fleet::Fleet;
use super::pairs::Pairs;
use super::watch::Watch;
use super::{DEVICES, FOLLOWING, LATENCY_LIMIT, USED_AT_LEAST, fleets_runtime};
use crate::rig::{Daemon, Scene, Stub, long, report};
use seawall::reconnect::{Policy, Schedule};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// More in flight would be a crowd: a single server needs one that is served and one that waits, and the law tries a
/// further one or two now and then.
const IN_FLIGHT_AT_MOST: f64 = 5.0;

/// Somebody always knocks: what is not used is then Seawall's doing.
fn restless() -> Schedule {
    const PAUSE: Duration = Duration::from_secs(5);
    Schedule::new(Policy::FullJitter, PAUSE, 1.0, PAUSE).unwrap()
}

#[test]
fn a_broker_of_half_the_capacity_is_followed_down_and_up_again() {
    const BEFORE: Duration = Duration::from_secs(8);
    const HALVED: Duration = Duration::from_secs(20);
    if !long() {
        return;
    }
    let scene = Scene::alone();
    let runtime = fleets_runtime();
    let (broker, _) = runtime.block_on(broker_of_the_capacity(&scene));
    let broker = Arc::new(broker);
    let daemon = Daemon::start(&scene, broker.address(), &FOLLOWING);
    let (course, messages) = runtime.block_on(async {
        let pairs = Pairs::connect(daemon.address()).await;
        let watch = Watch::start(&daemon, &broker);
        let fleet = Fleet::start(daemon.address(), DEVICES, restless());
        let (from, before) = (Instant::now(), answered(&broker));
        tokio::time::sleep(BEFORE).await;
        let halved = Arc::clone(&broker);
        let halving = std::thread::spawn(move || halve(&halved, HALVED));
        let (inside, took) = fleet.gather(Duration::from_secs(70)).await;
        halving.join().unwrap();
        assert_eq!(inside, DEVICES, "devices in");
        let (messages, looks, timeline) = (pairs.finish(), watch.finish(), fleet.finish());
        let course = Course {
            from,
            took,
            timeline,
            looks,
            answered: answered(&broker).saturating_sub(before),
        };
        (course, messages)
    });

    let took = course.took.as_secs_f64();
    // A second each to notice; before the end the crowd is too thin.
    let used = [
        course.used(1.0, 8.0),
        course.used(9.0, 28.0) / 0.5,
        course.used(29.0, took - 2.0),
    ];
    let rate = [7.9, 27.9, took - 2.0].map(|second| course.look_at(second).rate);
    report(&format!(
        "all in after {took:.1} s; used {:.0} % of the whole, {:.0} % of the half, {:.0} % of the whole again; rate {:.0}, \
         {:.0}, {:.0}; at most {} in flight; pairs: {messages}",
        used[0] * 100.0,
        used[1] * 100.0,
        used[2] * 100.0,
        rate[0],
        rate[1],
        rate[2],
        course.most_in_flight()
    ));
    assert!(used.iter().all(|used| *used >= USED_AT_LEAST), "used {used:.2?}");
    assert!(
        rate[1] <= 0.65 * rate[0] && rate[2] >= 0.9 * rate[0],
        "rate {rate:.0?}"
    );
    assert!(course.most_in_flight() <= IN_FLIGHT_AT_MOST, "a crowd in flight");
    assert_eq!(messages.received(), messages.sent, "messages of the connected");
    assert!(messages.percentile(99.0) <= LATENCY_LIMIT, "p99 of the connected");
}

#[test]
fn a_broker_that_crashes_is_left_alone_and_comes_back_to_no_crowd() {
    const BEFORE: Duration = Duration::from_secs(10);
    const DEAD: Duration = Duration::from_secs(5);
    /// The default of `upstream.breaker.slow_start`, in seconds.
    const SLOW_START: f64 = 10.0;
    if !long() {
        return;
    }
    let scene = Scene::alone();
    let runtime = fleets_runtime();
    let (mut broker, _) = runtime.block_on(broker_of_the_capacity(&scene));
    let address = broker.address();
    let daemon = Daemon::start(&scene, address, &FOLLOWING);
    let dials = Arc::new(Mutex::new(Vec::new()));
    let (course, crashed) = runtime.block_on(async {
        let watch = Watch::start(&daemon, &broker);
        let fleet = Fleet::start(daemon.address(), DEVICES, restless());
        let (from, before) = (Instant::now(), answered(&broker));
        tokio::time::sleep(BEFORE).await;
        let crashed = Instant::now();
        broker.crash();
        // Who dials meanwhile is counted, and reset.
        let seen = Arc::clone(&dials);
        let stub = Stub::start_at(address, move |link| {
            seen.lock().unwrap().push(Instant::now());
            async move { link.reset() }
        })
        .await;
        tokio::time::sleep(DEAD.saturating_sub(crashed.elapsed())).await;
        stub.stop().await;
        broker.start_again();
        watch.follow(&broker);
        let (inside, took) = fleet.gather(Duration::from_secs(90)).await;
        assert_eq!(inside, DEVICES, "devices in");
        let (looks, timeline) = (watch.finish(), fleet.finish());
        let course = Course {
            from,
            took,
            timeline,
            looks,
            answered: answered(&broker).saturating_sub(before),
        };
        (course, crashed)
    });

    let crashed = course.second(crashed);
    let opened = course.looks.iter().find(|look| look.breaker == 2.0).unwrap();
    let closed = course
        .looks
        .iter()
        .find(|look| look.at > opened.at && look.breaker == 0.0);
    let (opened, closed) = (course.second(opened.at), course.second(closed.unwrap().at));
    let dials: Vec<f64> = dials
        .lock()
        .unwrap()
        .iter()
        .map(|dial| course.second(*dial))
        .collect();
    let probes: Vec<f64> = dials.iter().copied().filter(|dial| *dial >= opened).collect();
    let full = closed + SLOW_START;
    let first = course.timeline.joined(closed, closed + 1.0);
    let after = course.used(full, full + 5.0);
    report(&format!(
        "open {:.2} s after the crash; dials {:.2?} s after it, {} of them while open; closed after {:.2} s; in the first \
         second {first} came in, {:.0} % of the capacity used in the five seconds after slow start; at most {} in flight",
        opened - crashed,
        dials.iter().map(|dial| dial - crashed).collect::<Vec<_>>(),
        probes.len(),
        closed - crashed,
        after * 100.0,
        course.most_in_flight()
    ));
    report(&format!(
        "in by the second: {:?}",
        course.timeline.joins_by_second()
    ));
    // The fifth failure is after the crash.
    assert!(opened - crashed <= 1.0, "it opened late");
    assert_eq!(
        probes.len(),
        1,
        "dials while open: one after 2 s, the next after 4 s more"
    );
    assert!(
        course.look_at(opened + 1.0).held > 0.0,
        "nobody is held while it is open"
    );
    assert!(first <= 0.3 * CAPACITY, "a crowd of {first} in the first second");
    assert!(course.most_in_flight() <= IN_FLIGHT_AT_MOST, "a crowd in flight");
    assert!(after >= USED_AT_LEAST, "{after:.2} used after slow start");
}
