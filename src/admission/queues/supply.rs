//! What there is, shared out among the lanes.

use std::time::Duration;

use super::Queues;
use super::queue::share;
use crate::admission::adaptive::Adaptive;
use crate::admission::bucket::{Bucket, Source, Tokens};
use crate::admission::{Settings, Share};
use crate::moment::Moment;

/// Most that the reserves take of the rate of the moment: where the rate follows the broker it may fall below
/// what was reserved of it, and those without a reserve must not be shut out.
const RESERVED_AT_MOST: f64 = 0.9;

/// What there is to share out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Supply {
    /// Tokens a second.
    pub rate: f64,
    /// Tokens at most.
    pub burst: f64,
    /// Seats.
    pub max_in_flight: u32,
    /// This process's part of the budget, 0 to 1: of the reserves it has as much.
    pub share: f64,
}

/// Tokens that are not for one who comes, in the buckets that would serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Of the shared bucket.
    pub shared: Tokens,
    /// Of its lane's reserve.
    pub reserve: Tokens,
}

impl Kept {
    /// All is for it.
    pub const NOTHING: Self = Self {
        shared: Tokens::NONE,
        reserve: Tokens::NONE,
    };
}

impl Supply {
    /// What is configured or was found, while no broker starts slowly: of it this process's `share`.
    pub fn full(settings: &Settings, adaptive: &Adaptive, share: Share) -> Self {
        if settings.adaptive.enabled {
            return Self::followed(settings, adaptive, share);
        }
        let part = share.fraction;
        Self {
            rate: settings.rate * part,
            burst: (settings.burst * part).max(1.0),
            max_in_flight: seats(settings, part),
            share: part,
        }
    }

    /// Tokens a second below which it does not go by following the broker; 0 where it does not follow.
    pub fn floor(settings: &Settings, share: Share) -> f64 {
        if settings.adaptive.enabled {
            with_reserves(settings.adaptive.min_rate, settings, share)
        } else {
            0.0
        }
    }

    /// What the pulse says is this process's own part already: the others' CONNECTs are in the latency that it follows.
    /// It goes no faster than its part of what all of them find together.
    fn followed(settings: &Settings, adaptive: &Adaptive, share: Share) -> Self {
        let part = share.fraction;
        let ceiling = share.ceiling.map_or(f64::INFINITY, |all| all * part);
        let most = settings.adaptive.highest_rate() * part;
        let rate = with_reserves(adaptive.rate().min(ceiling), settings, share).min(most);
        // The configured burst is meant for the configured rate; of another rate it is one second's worth at most.
        Self {
            rate,
            burst: settings.burst.min(rate.max(1.0)),
            max_in_flight: adaptive.window().min(seats(settings, part)),
            share: part,
        }
    }
}

/// One at least: a replica without one could not find out that it needs more.
fn seats(settings: &Settings, part: f64) -> u32 {
    ((f64::from(settings.max_in_flight) * part) as u32).max(1)
}

/// The reserves come on top of what was found: the window is what protects the broker, and taken out of a rate that was
/// found with few in flight they would leave the others too little to show that the broker bears more.
fn with_reserves(rate: f64, settings: &Settings, share: Share) -> f64 {
    let reserves: f64 = settings.lanes.iter().map(|lane| lane.reserve).sum();
    (rate + reserves * share.fraction).min(settings.adaptive.highest_rate())
}

impl<W> Queues<W> {
    /// The buckets, with what they give in tokens a second.
    pub fn sources(&self) -> impl Iterator<Item = (Source, f64)> {
        let reserves = self
            .lanes
            .iter()
            .filter_map(|queue| Some((queue.source(), queue.reserve.as_ref()?.rate())));
        reserves.chain([(Source::SHARED, self.shared.rate())])
    }

    /// The most tokens that `source` gives within `time`: a burst and what comes meanwhile.
    pub fn most_of(&self, source: Source, time: Duration) -> f64 {
        let reserve = self
            .lanes
            .iter()
            .find(|queue| queue.source() == source)
            .and_then(|queue| queue.reserve.as_ref());
        let bucket = reserve.unwrap_or(&self.shared);
        bucket.burst().as_f64() + bucket.rate() * time.as_secs_f64()
    }

    /// What the bucket that `lane` can count on would give a second, where all of them together give `rate`.
    pub fn part_of(&self, rate: f64, lane: usize) -> f64 {
        let scale = self.scale(rate);
        match self.lanes.get(self.index(lane)) {
            Some(queue) if queue.reserve.is_some() => queue.wanted * scale,
            _ => rate - self.wanted() * scale,
        }
    }

    /// Takes new lanes and limits over. A lane that keeps its name keeps its queue, its seats and its tokens; a new
    /// one's reserve begins empty; who is held in one that is gone is served without a reserve.
    pub fn reconfigure(&mut self, settings: &Settings, supply: Supply, now: Moment) {
        let mut old = std::mem::take(&mut self.lanes);
        let named = settings
            .lanes
            .iter()
            .map(|lane| (Some(lane.name.clone()), lane.priority, lane.reserve));
        for (name, priority, wanted) in named.chain([(None, 0, 0.0)]) {
            let known = old.iter().position(|queue| queue.name == name);
            let mut queue = known.map_or_else(|| self.fresh(name), |index| old.swap_remove(index));
            queue.priority = priority;
            queue.wanted = wanted;
            queue.portion = wanted / settings.rate;
            self.lanes.push(queue);
        }
        for mut queue in old {
            queue.wanted = 0.0;
            queue.portion = 0.0;
            self.lanes.push(queue);
        }
        self.default = settings.lanes.len();
        self.drop_empty();
        self.largest = Tokens::new(settings.cost.clean.max(settings.cost.persistent));
        self.max_held = settings.max_held;
        for queue in &mut self.lanes {
            queue.places = share(self.max_held, queue.portion);
        }
        self.shared_places = self
            .max_held
            .saturating_sub(self.lanes.iter().map(|queue| queue.places).sum());
        self.set_supply(supply, now);
    }

    /// Shares another supply out from now on; what is in the buckets stays there, cut to their new size.
    pub fn set_supply(&mut self, supply: Supply, now: Moment) {
        self.supply = supply;
        let (wanted, scale) = (self.wanted(), self.scale(supply.rate));
        let mut burst = Tokens::new(supply.burst);
        let mut seats = 0;
        for queue in &mut self.lanes {
            let rate = queue.wanted * scale;
            queue.reserve = (rate > 0.0).then(|| {
                let size = Tokens::new(rate.max(1.0)).max(self.largest);
                burst -= size;
                let mut bucket = queue
                    .reserve
                    .take()
                    .unwrap_or_else(|| Bucket::empty(rate, size, now));
                bucket.reconfigure(rate, size, now);
                bucket
            });
            queue.seats = share(supply.max_in_flight as usize, queue.portion) as u32;
            seats += queue.seats;
        }
        self.shared
            .reconfigure(supply.rate - wanted * scale, burst.max(self.largest), now);
        // Those without a share need a seat as well.
        self.shared_seats = supply.max_in_flight.saturating_sub(seats).max(1);
        self.pace.note(!self.has_shared_seat(), now);
    }
    /// Tokens a second that all reserves together are to have.
    fn wanted(&self) -> f64 {
        self.lanes.iter().map(|queue| queue.wanted).sum()
    }

    /// What part of it they have of `rate`.
    fn scale(&self, rate: f64) -> f64 {
        let wanted = self.wanted();
        if wanted > 0.0 {
            (RESERVED_AT_MOST * rate / wanted).min(self.supply.share)
        } else {
            0.0
        }
    }
}
