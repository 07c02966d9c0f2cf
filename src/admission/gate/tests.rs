use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const NO_LIMIT: Settings = Settings {
    max_in_flight: 1,
    max_waiting: 100,
    full: None,
    resumed: None,
};

const fn budget(rate: f64, burst: f64) -> Budget {
    Budget { rate, burst }
}

fn at(milliseconds: u64) -> Moment {
    Moment::from_nanos(milliseconds * 1_000_000)
}

/// What [`Stage`] saw, by the number of who it happened to.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    In(u32),
    Out(u32, Turned),
    Revoked(u32),
}

/// A gate whose waiters are numbers, with everything that happened.
struct Stage {
    gate: Gate<u32>,
    next: u32,
    places: BTreeMap<u32, Place>,
    spots: BTreeMap<u32, Spot>,
}

impl Stage {
    fn new(settings: &Settings) -> Self {
        Self {
            gate: Gate::new(settings, Moment::ZERO),
            next: 0,
            places: BTreeMap::new(),
            spots: BTreeMap::new(),
        }
    }

    /// One enters who was accepted just now; then all that is due.
    fn enter(&mut self, class: Class, now: Moment) -> Vec<Seen> {
        self.enter_since(class, now, now)
    }

    fn enter_since(&mut self, class: Class, since: Moment, now: Moment) -> Vec<Seen> {
        let number = self.next;
        self.next += 1;
        let mut seen = Vec::new();
        match self.gate.enter(class, since, |_| number, now) {
            Verdict::Place(place) => {
                self.places.insert(number, place);
                seen.push(Seen::In(number));
            }
            Verdict::Wait(spot) => {
                self.spots.insert(number, spot);
            }
            Verdict::Turned(reason) => seen.push(Seen::Out(number, reason)),
        }
        seen.extend(self.release(now));
        seen
    }

    fn finish(&mut self, number: u32, outcome: Outcome, now: Moment) -> Vec<Seen> {
        let place = self.places.remove(&number).expect("has a place");
        self.gate.finish(place, outcome, now);
        self.release(now)
    }

    fn release(&mut self, now: Moment) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(released) = self.gate.release(now) {
            seen.push(match released {
                Released::Place { waiter, place } => {
                    self.spots.remove(&waiter);
                    self.places.insert(waiter, place);
                    Seen::In(waiter)
                }
                Released::Turned { waiter, reason } => {
                    self.spots.remove(&waiter);
                    Seen::Out(waiter, reason)
                }
                Released::Revoked(place) => {
                    let holder = self.places.iter().find(|(_, held)| held.number() == place);
                    Seen::Revoked(*holder.expect("is held").0)
                }
            });
        }
        let next = self.gate.next_release(now);
        assert!(next.is_none_or(|next| next > now), "the loop would spin");
        assert_eq!(next.is_none(), self.spots.is_empty());
        seen
    }
}

#[test]
fn places_are_given_until_they_run_out() {
    let mut stage = Stage::new(&Settings {
        max_in_flight: 2,
        ..NO_LIMIT
    });
    assert_eq!(stage.enter(Class::Full, at(0)), [Seen::In(0)]);
    assert_eq!(stage.enter(Class::Full, at(0)), [Seen::In(1)]);
    assert_eq!(stage.enter(Class::Full, at(0)), []);
    assert_eq!(stage.gate.snapshot().waiting_full, 1);
    assert_eq!(stage.finish(0, Outcome::Used, at(5)), [Seen::In(2)]);
    assert_eq!(stage.gate.snapshot().in_flight, 2);
}

#[test]
fn resumers_go_first_and_the_newest_of_each_class() {
    let mut stage = Stage::new(&NO_LIMIT);
    stage.enter(Class::Full, at(0));
    for (number, class) in [Class::Full, Class::Resumed, Class::Resumed, Class::Full]
        .into_iter()
        .enumerate()
    {
        assert_eq!(stage.enter(class, at(1 + number as u64)), []);
    }
    let order = [3, 2, 4, 1];
    let mut holder = 0;
    for next in order {
        assert_eq!(stage.finish(holder, Outcome::Used, at(10)), [Seen::In(next)]);
        holder = next;
    }
}

#[test]
fn who_was_accepted_later_is_newer_whenever_its_hello_came() {
    let mut stage = Stage::new(&NO_LIMIT);
    stage.enter(Class::Full, at(2000));
    stage.enter_since(Class::Full, at(1900), at(2000));
    stage.enter_since(Class::Full, at(500), at(2100));
    assert_eq!(stage.finish(0, Outcome::Used, at(2200)), [Seen::In(1)]);
}

#[test]
fn past_the_limit_the_oldest_stranger_goes_before_any_resumer() {
    let settings = Settings {
        max_waiting: 2,
        ..NO_LIMIT
    };
    let mut stage = Stage::new(&settings);
    stage.enter(Class::Full, at(0));
    stage.enter(Class::Full, at(1));
    stage.enter(Class::Full, at(2));
    assert_eq!(stage.enter(Class::Full, at(3)), [Seen::Out(1, Turned::Full)]);
    assert_eq!(stage.enter(Class::Resumed, at(4)), [Seen::Out(2, Turned::Full)]);
    assert_eq!(stage.enter(Class::Resumed, at(5)), [Seen::Out(3, Turned::Full)]);
    assert_eq!(
        stage.enter(Class::Full, at(6)),
        [Seen::Out(6, Turned::Full)],
        "a stranger pushes no resumer out"
    );
    assert_eq!(stage.enter(Class::Resumed, at(7)), [Seen::Out(4, Turned::Full)]);
    assert_eq!(
        stage.enter_since(Class::Resumed, at(1), at(8)),
        [Seen::Out(8, Turned::Full)],
        "the oldest is the newcomer itself"
    );
}

#[test]
fn with_no_waiting_allowed_who_finds_no_place_is_turned_away() {
    let mut stage = Stage::new(&Settings {
        max_waiting: 0,
        ..NO_LIMIT
    });
    stage.enter(Class::Full, at(0));
    assert_eq!(stage.enter(Class::Full, at(0)), [Seen::Out(1, Turned::Full)]);
    assert_eq!(stage.enter(Class::Resumed, at(0)), [Seen::Out(2, Turned::Full)]);
}

#[test]
fn who_gets_too_old_is_turned_away_and_not_before() {
    let mut stage = Stage::new(&NO_LIMIT);
    stage.enter(Class::Full, at(0));
    stage.enter_since(Class::Full, at(500), at(700));
    assert_eq!(
        stage.enter_since(Class::Full, at(0), at(4000)),
        [Seen::Out(2, Turned::TooLate), Seen::Revoked(0)]
    );
    assert_eq!(stage.gate.next_release(at(4000)), Some(at(4500)));
    assert_eq!(stage.release(at(4499)), []);
    assert_eq!(stage.release(at(4500)), [Seen::Out(1, Turned::TooLate)]);
}

#[test]
fn an_old_one_who_finds_a_free_place_gets_it() {
    let mut stage = Stage::new(&NO_LIMIT);
    assert_eq!(
        stage.enter_since(Class::Full, at(0), at(9000)),
        [Seen::In(0)],
        "a modem that needs 9 s for its hello is slow, not gone"
    );
}

#[test]
fn a_budget_serves_the_newest_that_it_can_serve_in_time_and_turns_the_rest_away() {
    let settings = Settings {
        max_in_flight: 1000,
        max_waiting: 1000,
        full: Some(budget(2.0, 1.0)),
        resumed: None,
    };
    let mut stage = Stage::new(&settings);
    assert_eq!(stage.enter(Class::Full, at(0)), [Seen::In(0)]);
    for _ in 0..8 {
        assert_eq!(stage.enter(Class::Full, at(0)), []);
    }
    // 2 a second for 4 s are 8: the ninth makes the oldest hopeless.
    assert_eq!(stage.enter(Class::Full, at(0)), [Seen::Out(1, Turned::Rate)]);
    assert_eq!(
        stage.enter(Class::Resumed, at(0)),
        [Seen::In(10)],
        "no budget of its own"
    );
    assert_eq!(stage.gate.next_release(at(0)), Some(at(500)));
    assert_eq!(stage.release(at(500)), [Seen::In(9)]);
}

#[test]
fn no_token_in_time_turns_away_at_once() {
    let mut stage = Stage::new(&Settings {
        full: Some(budget(0.1, 1.0)),
        ..NO_LIMIT
    });
    assert_eq!(stage.enter(Class::Full, at(0)), [Seen::In(0)]);
    assert_eq!(stage.enter(Class::Full, at(0)), [Seen::Out(1, Turned::Rate)]);
}

#[test]
fn a_stranger_does_not_take_the_place_of_a_resumer_whose_token_has_come() {
    let mut stage = Stage::new(&Settings {
        resumed: Some(budget(1.0, 1.0)),
        ..NO_LIMIT
    });
    assert_eq!(stage.enter(Class::Resumed, at(0)), [Seen::In(0)]);
    assert_eq!(stage.finish(0, Outcome::Used, at(1)), []);
    assert_eq!(stage.enter(Class::Resumed, at(2)), []);
    // The timer for 1000 is late.
    assert_eq!(stage.enter(Class::Full, at(1010)), [Seen::In(1)]);
    assert_eq!(stage.gate.snapshot().waiting_full, 1);
}

#[test]
fn the_slowest_goes_when_places_run_out_and_no_sooner() {
    let mut stage = Stage::new(&Settings {
        max_in_flight: 2,
        ..NO_LIMIT
    });
    stage.enter(Class::Full, at(0));
    stage.enter(Class::Full, at(100));
    assert_eq!(stage.release(at(3000)), [], "nobody waits");
    stage.finish(0, Outcome::Used, at(3000));
    stage.enter(Class::Full, at(3000));
    assert_eq!(stage.enter(Class::Full, at(3001)), [Seen::Revoked(1)]);
    assert_eq!(
        stage.enter(Class::Full, at(3002)),
        [],
        "the other place is too young"
    );
    assert_eq!(stage.gate.next_release(at(3002)), Some(at(4000)));
    assert_eq!(
        stage.gate.snapshot().in_flight,
        2,
        "a revoked place is taken until it is given back"
    );
    assert_eq!(stage.finish(1, Outcome::Used, at(3003)), [Seen::In(4)]);
    assert_eq!(stage.release(at(4000)), [Seen::Revoked(2)]);
}

#[test]
fn no_place_is_taken_away_for_one_who_has_no_token() {
    let mut stage = Stage::new(&Settings {
        full: Some(budget(0.5, 1.0)),
        ..NO_LIMIT
    });
    assert_eq!(stage.enter(Class::Full, at(0)), [Seen::In(0)]);
    assert_eq!(stage.enter(Class::Full, at(500)), []);
    assert_eq!(stage.gate.next_release(at(500)), Some(at(2000)));
    assert_eq!(stage.release(at(1999)), []);
    assert_eq!(stage.release(at(2000)), [Seen::Revoked(0)]);
}

#[test]
fn an_unused_place_gives_its_token_back() {
    let settings = Settings {
        full: Some(budget(0.5, 1.0)),
        ..NO_LIMIT
    };
    for (outcome, then) in [(Outcome::Unused, vec![Seen::In(1)]), (Outcome::Used, vec![])] {
        let mut stage = Stage::new(&settings);
        stage.enter(Class::Full, at(0));
        stage.enter(Class::Full, at(0));
        assert_eq!(stage.finish(0, outcome, at(1)), then, "{outcome:?}");
    }
}

#[test]
fn a_claim_that_fell_back_pays_the_full_price_up_to_a_bounded_debt() {
    let settings = Settings {
        max_in_flight: 1000,
        full: Some(budget(10.0, 10.0)),
        ..NO_LIMIT
    };
    let mut stage = Stage::new(&settings);
    for number in 0..10 {
        stage.enter(Class::Resumed, at(0));
        stage.finish(number, Outcome::FellBack, at(0));
    }
    assert_eq!(stage.enter(Class::Full, at(0)), []);
    assert_eq!(
        stage.release(at(100)),
        [Seen::In(10)],
        "ten strangers' tokens are gone"
    );
    for number in 11..1000 {
        stage.enter(Class::Resumed, at(100));
        stage.finish(number, Outcome::FellBack, at(100));
    }
    assert_eq!(stage.enter(Class::Full, at(100)), []);
    assert_eq!(stage.release(at(1199)), []);
    assert_eq!(
        stage.release(at(1200)),
        [Seen::In(1000)],
        "the debt is one burst, not 989"
    );
}

#[test]
fn a_reload_takes_effect_on_those_who_wait() {
    let mut stage = Stage::new(&Settings {
        full: Some(budget(0.5, 1.0)),
        ..NO_LIMIT
    });
    stage.enter(Class::Full, at(0));
    for millisecond in 1..=2 {
        stage.enter(Class::Full, at(millisecond));
    }
    let wide = Settings {
        max_in_flight: 2,
        max_waiting: 0,
        ..NO_LIMIT
    };
    stage.gate.reconfigure(&wide, at(10));
    assert_eq!(stage.release(at(10)), [Seen::In(2), Seen::Out(1, Turned::Full)]);
    stage.gate.reconfigure(&NO_LIMIT, at(11));
    assert_eq!(stage.gate.snapshot().in_flight, 2, "what is taken stays taken");
    stage.finish(0, Outcome::Used, at(12));
    assert_eq!(stage.enter(Class::Full, at(12)), []);
    assert_eq!(stage.finish(2, Outcome::Used, at(13)), [Seen::In(3)]);
}

/// As many resumers as strangers at once, alternating. A place serves one handshake in `work`. Returns who was served, in
/// order, and how many were turned away.
fn storm(devices: u32, settings: &Settings, work: Duration) -> (Vec<Class>, usize) {
    let mut gate: Gate<Class> = Gate::new(settings, Moment::ZERO);
    let (mut served, mut working, mut turned) = (Vec::new(), Vec::new(), 0);
    let mut carry_out = |gate: &mut Gate<Class>, served: &mut Vec<Class>, now| {
        let mut places = Vec::new();
        while let Some(released) = gate.release(now) {
            match released {
                Released::Place { waiter, place } => {
                    served.push(waiter);
                    places.push(place);
                }
                Released::Turned { .. } => turned += 1,
                Released::Revoked(_) => panic!("nobody is slow"),
            }
        }
        places
    };
    for number in 0..2 * devices {
        let class = [Class::Resumed, Class::Full][number as usize % 2];
        let now = Moment::from_nanos(u64::from(number));
        if let Verdict::Place(place) = gate.enter(class, now, |_| class, now) {
            served.push(class);
            working.push(place);
        }
        working.extend(carry_out(&mut gate, &mut served, now));
    }
    let mut now = at(1);
    while !working.is_empty() {
        now = now + work;
        for place in std::mem::take(&mut working) {
            gate.finish(place, Outcome::Used, now);
        }
        working = carry_out(&mut gate, &mut served, now);
    }
    assert_eq!(gate.snapshot(), Snapshot::default());
    (served, turned)
}

#[test]
fn resumers_are_through_before_strangers_begin() {
    const DEVICES: u32 = 4000;
    const PLACES: u32 = 16;
    // A quarter of them can be served in a second, and a quarter before all are too old.
    for (served_a_second, max_waiting) in [(2000, 4096), (500, 8000), (2000, 8000)] {
        let settings = Settings {
            max_in_flight: PLACES,
            max_waiting,
            ..NO_LIMIT
        };
        let work = Duration::from_secs(1) * PLACES / served_a_second;
        let (served, turned) = storm(DEVICES, &settings, work);
        let case = format!("{served_a_second} a second, {max_waiting} wait");
        let able = (served_a_second * 4).min(DEVICES) as usize;
        let resumers = |served: &[Class]| served.iter().filter(|class| **class == Class::Resumed).count();
        let strangers_begin = served
            .iter()
            .enumerate()
            .filter(|(_, class)| **class == Class::Full)
            .nth(DEVICES as usize / 10);
        let before = strangers_begin.map_or(served.len(), |(position, _)| position);
        let through = resumers(&served[..before]);
        assert!(through * 100 >= able * 95, "{case}: {through} of {able} resumers");
        assert!(
            served.len() >= able * 95 / 100,
            "{case}: {} served, {turned} turned",
            served.len()
        );
    }
}

/// One step of a random history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(Class, u64),
    Finish(usize, Outcome),
    Leave(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![Just(Class::Resumed), Just(Class::Full)];
    let outcome = prop_oneof![
        4 => Just(Outcome::Used),
        1 => Just(Outcome::Unused),
        1 => Just(Outcome::FellBack)
    ];
    let age = prop_oneof![3 => Just(0_u64), 1 => 0_u64..5000];
    prop_oneof![
        6 => (class, age).prop_map(|(class, age)| Step::Enter(class, age)),
        3 => (any::<usize>(), outcome).prop_map(|(who, outcome)| Step::Finish(who, outcome)),
        1 => any::<usize>().prop_map(Step::Leave),
        2 => (0_u64..1500).prop_map(Step::Wait),
    ]
}

fn any_budget() -> impl Strategy<Value = Option<Budget>> {
    prop_oneof![
        Just(None),
        (1_u32..200, 1_u32..5)
            .prop_map(|(rate, burst)| Some(budget(f64::from(rate) / 10.0, f64::from(burst))))
    ]
}

/// What the model knows of one who entered.
struct Known {
    class: Class,
    since: Moment,
    begun: Option<Moment>,
    revoked: bool,
}

/// Everything that was granted or refunded, for the check of the budgets.
#[derive(Default)]
struct Ledger(Vec<(Moment, Class, i32)>);

impl Ledger {
    /// In any window no more than burst + rate · time + refunds.
    fn within(&self, class: Class, budget: Option<Budget>) -> Result<(), TestCaseError> {
        let Some(Budget { rate, burst }) = budget else {
            return Ok(());
        };
        let entries: Vec<_> = self.0.iter().filter(|entry| entry.1 == class).collect();
        for (first, (from, ..)) in entries.iter().enumerate() {
            let mut issued = 0;
            for (until, _, tokens) in entries.iter().skip(first) {
                issued += tokens;
                let most = burst + rate * (*until - *from).as_secs_f64();
                prop_assert!(f64::from(issued) <= most + 1e-6, "{issued} of {most}");
            }
        }
        Ok(())
    }
}

/// A [`Stage`] beside what everybody is known to be.
struct Model {
    stage: Stage,
    settings: Settings,
    people: BTreeMap<u32, Known>,
    ledger: Ledger,
}

impl Model {
    fn check(&mut self, seen: Vec<Seen>, now: Moment) -> Result<(), TestCaseError> {
        for event in seen {
            match event {
                Seen::In(number) => self.granted(number, now)?,
                Seen::Out(number, _) => {
                    self.people.remove(&number);
                }
                Seen::Revoked(number) => self.taken_away(number, now)?,
            }
        }
        let snapshot = self.stage.gate.snapshot();
        let places = self.people.values().filter(|known| known.begun.is_some()).count();
        prop_assert_eq!(snapshot.in_flight, places);
        prop_assert!(places <= self.settings.max_in_flight as usize);
        let waiting = snapshot.waiting_full + snapshot.waiting_resumed;
        prop_assert_eq!(waiting, self.people.len() - places);
        prop_assert!(waiting <= self.settings.max_waiting);
        for known in self.people.values().filter(|known| known.begun.is_none()) {
            prop_assert!(known.since + PATIENCE > now);
        }
        Ok(())
    }

    fn granted(&mut self, number: u32, now: Moment) -> Result<(), TestCaseError> {
        let known = &self.people[&number];
        let (class, since) = (known.class, known.since);
        let waited = number + 1 != self.stage.next;
        let others = || self.people.values().filter(|other| other.begun.is_none());
        if waited {
            let newer = others().filter(|other| other.class == class && other.since > since);
            prop_assert_eq!(newer.count(), 0, "a newer one waits");
        }
        if class == Class::Full && self.settings.resumed.is_none() {
            prop_assert!(
                others().all(|other| other.class != Class::Resumed),
                "a resumer waits"
            );
        }
        self.ledger.0.push((now, class, 1));
        self.people.get_mut(&number).unwrap().begun = Some(now);
        Ok(())
    }

    fn taken_away(&mut self, number: u32, now: Moment) -> Result<(), TestCaseError> {
        let begun = self.people[&number].begun.expect("holds a place");
        prop_assert!(begun + LEAST_HELD <= now);
        let held = self
            .people
            .values()
            .filter(|known| known.begun.is_some() && !known.revoked);
        prop_assert_eq!(held.filter_map(|known| known.begun).min(), Some(begun));
        self.people.get_mut(&number).unwrap().revoked = true;
        let revoked = self.people.values().filter(|known| known.revoked).count();
        let waiting = self.people.values().filter(|known| known.begun.is_none()).count();
        prop_assert!(revoked <= waiting, "{} revoked for {}", revoked, waiting);
        Ok(())
    }

    fn take(&mut self, step: Step, now: Moment) -> Result<(), TestCaseError> {
        let seen = match step {
            Step::Enter(class, age) => {
                let since = Moment::from_nanos(now.as_nanos().saturating_sub(age * 1_000_000));
                let known = Known {
                    class,
                    since,
                    begun: None,
                    revoked: false,
                };
                self.people.insert(self.stage.next, known);
                self.stage.enter_since(class, since, now)
            }
            Step::Finish(who, outcome) => {
                let Some(number) = nth(&self.stage.places, who) else {
                    return Ok(());
                };
                let known = self.people.remove(&number).expect("is known");
                if outcome == Outcome::Unused {
                    self.ledger.0.push((now, known.class, -1));
                }
                self.stage.finish(number, outcome, now)
            }
            Step::Leave(who) => {
                let Some(number) = nth(&self.stage.spots, who) else {
                    return Ok(());
                };
                let spot = self.stage.spots.remove(&number).expect("waits");
                self.people.remove(&number);
                self.stage.gate.withdraw(spot);
                self.stage.release(now)
            }
            Step::Wait(_) => self.stage.release(now),
        };
        self.check(seen, now)
    }

    /// As the daemon does: wakes whenever something is due.
    fn sleep(&mut self, now: Moment, until: Moment) -> Result<(), TestCaseError> {
        let mut now = now;
        while let Some(next) = self.stage.gate.next_release(now).filter(|next| *next <= until) {
            now = next;
            let seen = self.stage.release(now);
            self.check(seen, now)?;
        }
        Ok(())
    }
}

fn nth<T>(map: &BTreeMap<u32, T>, index: usize) -> Option<u32> {
    (!map.is_empty()).then(|| *map.keys().nth(index % map.len()).expect("is within"))
}

proptest! {
    /// Whatever happens: places and waiting stay within their limits, the newest of the first class goes first, nobody
    /// is served late, budgets are not over-issued, and in the end nothing is left.
    #[test]
    fn any_history_keeps_the_rules(
        max_in_flight in 1_u32..6,
        max_waiting in 0_usize..12,
        full in any_budget(),
        resumed in any_budget(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let settings = Settings { max_in_flight, max_waiting, full, resumed };
        let mut model = Model {
            stage: Stage::new(&settings),
            settings: settings.clone(),
            people: BTreeMap::new(),
            ledger: Ledger::default(),
        };
        let mut now = at(10_000);
        for step in steps {
            if let Step::Wait(milliseconds) = step {
                let until = now + Duration::from_millis(milliseconds);
                model.sleep(now, until)?;
                now = until;
            }
            model.take(step, now)?;
        }
        model.ledger.within(Class::Full, full)?;
        model.ledger.within(Class::Resumed, resumed)?;

        while let Some(number) = nth(&model.stage.places, 0) {
            model.people.remove(&number);
            let seen = model.stage.finish(number, Outcome::Used, now);
            model.check(seen, now)?;
        }
        model.sleep(now, now + PATIENCE)?;
        while let Some(number) = nth(&model.stage.places, 0) {
            model.people.remove(&number);
            model.stage.finish(number, Outcome::Used, now + PATIENCE);
        }
        prop_assert_eq!(model.stage.gate.snapshot(), Snapshot::default());
        prop_assert!(model.stage.gate.next_release(now + PATIENCE).is_none());
    }
}
