//! One client id that comes too often: a hot loop, or several devices that share it and take it from each other.

use std::time::Duration;

use super::bucket::{Bucket, Tokens};
use super::memory::{ByKey, Key, Memory};
use crate::moment::Moment;

/// `[admission.per_client]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settings {
    /// CONNECTs a second of one client id; 0: no limit.
    pub rate: f64,
    /// Burst; 0: one second's worth, at least 1.
    pub burst: f64,
}

/// Clients a generation whose knocks are counted: 100,000 at about 7 MB. Past it the oldest begin anew.
const COUNTED: usize = 100_000;

/// Sessions that are known to be open. Past it further ones are not, and their twins not seen; with 24 bytes each
/// that is 50 MB, at more connections than one process can have.
const SESSIONS: usize = 1 << 20;

/// Client ids a generation that were taken over lately.
const TAKEN_OVER: usize = 10_000;

/// Takeovers in a row that are taken as accidents: a device whose network changed leaves its old connection behind
/// and takes its id over once, at times twice.
const ACCIDENTS: u32 = 3;

/// A takeover this long after the last one is a new accident. Longer than most keep-alives, so that a device with a
/// broken link every now and then is no twin.
const FORGOTTEN: Duration = Duration::from_mins(2);

/// The first pause of a twin; doubles with every further takeover.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest: the twins' owner must find out by the logs, not by a dead device.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Limits a client id, and slows down those that several devices share.
#[derive(Clone, Debug)]
pub struct Clients {
    settings: Settings,
    counted: Memory<Counted>,
    /// How many sessions each client id has open or is about to have. Two for a moment, when it is taken over.
    open: ByKey<u32>,
    /// Most client ids in `open`.
    room: usize,
    taken_over: Memory<Takeovers>,
}

/// An open session, to be ended.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a session that is not ended is open for ever"]
pub struct Session(Key);

#[derive(Clone, Debug)]
struct Counted {
    bucket: Bucket,
    /// When it was told to come again.
    told: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Takeovers {
    in_a_row: u32,
    last: Moment,
}

impl Clients {
    /// Nobody is known.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            counted: Memory::new(COUNTED, span(settings)),
            open: ByKey::default(),
            room: SESSIONS,
            taken_over: Memory::new(TAKEN_OVER, FORGOTTEN),
        }
    }

    /// Other limits from now on. Changed limits are counted from zero.
    pub fn reconfigure(&mut self, settings: Settings) {
        if settings != self.settings {
            self.counted = Memory::new(COUNTED, span(settings));
            self.settings = settings;
        }
    }

    /// Whether `client` comes too early: for how long yet. Counts it, if not; but not one who comes when it was
    /// [told](Self::told) to, once for each time.
    pub fn knock(&mut self, client: Key, now: Moment) -> Result<(), Duration> {
        let pause = self.pause_of_a_twin(client, now);
        if !pause.is_zero() {
            return Err(pause);
        }
        let Settings { rate, .. } = self.settings;
        if rate <= 0.0 {
            return Ok(());
        }
        let one = Tokens::new(1.0);
        if let Some(Counted { bucket, told }) = self.counted.get(client, now) {
            if told.take_if(|told| *told <= now).is_some() {
                return Ok(());
            }
            return if bucket.take(one, now) {
                *told = None;
                Ok(())
            } else {
                Err(bucket.available_at(one, Tokens::NONE, now) - now)
            };
        }
        let mut bucket = Bucket::new(rate, Tokens::new(burst(self.settings)), now);
        bucket.take(one, now);
        self.counted.put(client, Counted { bucket, told: None }, now);
        Ok(())
    }

    /// `client` is refused for want of room, and told to come again at `at`.
    pub fn told(&mut self, client: Key, at: Moment, now: Moment) {
        if self.settings.rate > 0.0
            && let Some(counted) = self.counted.get(client, now)
        {
            counted.told = Some(at);
        }
    }

    /// `client` is on its way to the broker. It may have a session already: whether that one is taken over is seen when it
    /// ends.
    pub fn enters(&mut self, client: Key) -> Option<Session> {
        if let Some(sessions) = self.open.get_mut(&client) {
            *sessions = sessions.saturating_add(1);
            return Some(Session(client));
        }
        if self.open.len() >= self.room {
            return None;
        }
        self.open.insert(client, 1);
        Some(Session(client))
    }

    /// A session is over, or has not come about.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a session ends once, so it is used up"
    )]
    pub fn ended(&mut self, session: Session) {
        let Some(sessions) = self.open.get_mut(&session.0) else {
            return;
        };
        *sessions -= 1;
        if *sessions == 0 {
            self.open.remove(&session.0);
        }
    }

    /// The broker has ended a session. Where its client has another one, that has taken this one over.
    pub fn kicked_out(&mut self, session: Session, now: Moment) {
        let client = session.0;
        self.ended(session);
        if self.open.contains_key(&client) {
            self.count_takeover(client, now);
        }
    }

    /// Clients with sessions that are known to be open or about to be.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    fn pause_of_a_twin(&self, client: Key, now: Moment) -> Duration {
        let Some(takeovers) = self.taken_over.peek(client) else {
            return Duration::ZERO;
        };
        let excess = takeovers.in_a_row.saturating_sub(ACCIDENTS);
        if excess == 0 || now - takeovers.last >= FORGOTTEN {
            return Duration::ZERO;
        }
        let pause = FIRST_PAUSE
            .saturating_mul(1 << (excess - 1).min(16))
            .min(LONGEST_PAUSE);
        (takeovers.last + pause) - now
    }

    fn count_takeover(&mut self, client: Key, now: Moment) {
        let known = self
            .taken_over
            .peek(client)
            .filter(|known| now - known.last < FORGOTTEN);
        let in_a_row = known.map_or(0, |known| known.in_a_row).saturating_add(1);
        self.taken_over
            .put(client, Takeovers { in_a_row, last: now }, now);
    }
}

fn burst(settings: Settings) -> f64 {
    if settings.burst > 0.0 {
        settings.burst
    } else {
        settings.rate.max(1.0)
    }
}

/// Until a bucket is full again: then there is nothing to remember.
fn span(settings: Settings) -> Duration {
    let full = if settings.rate > 0.0 {
        burst(settings) / settings.rate
    } else {
        0.0
    };
    // A day is longer than any limit that means something, and a float that is no time at all.
    Duration::try_from_secs_f64(full)
        .unwrap_or(Duration::MAX)
        .clamp(Duration::from_secs(1), Duration::from_hours(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Key = Key(7);

    fn at(milliseconds: u64) -> Moment {
        Moment::from_nanos(milliseconds * 1_000_000)
    }

    #[test]
    fn a_client_has_its_own_rate() {
        let mut clients = Clients::new(Settings {
            rate: 0.5,
            burst: 2.0,
        });
        assert_eq!(clients.knock(CLIENT, at(0)), Ok(()));
        assert_eq!(clients.knock(CLIENT, at(0)), Ok(()));
        assert_eq!(clients.knock(CLIENT, at(0)), Err(Duration::from_secs(2)));
        assert_eq!(
            clients.knock(CLIENT, at(500)),
            Err(Duration::from_millis(1500)),
            "asking costs nothing"
        );
        assert_eq!(clients.knock(Key(8), at(500)), Ok(()));
        assert_eq!(clients.knock(CLIENT, at(2000)), Ok(()));
        assert_eq!(clients.knock(CLIENT, at(2000)), Err(Duration::from_secs(2)));
    }

    #[test]
    fn who_comes_when_it_was_told_to_is_not_counted_once() {
        let mut clients = Clients::new(Settings {
            rate: 0.1,
            burst: 1.0,
        });
        let early = |seconds| Err(Duration::from_secs(seconds));
        assert_eq!(clients.knock(CLIENT, at(0)), Ok(()));
        clients.told(CLIENT, at(2000), at(0));
        assert_eq!(clients.knock(CLIENT, at(1000)), early(9));
        assert_eq!(clients.knock(CLIENT, at(2000)), Ok(()), "as it was told");
        assert_eq!(clients.knock(CLIENT, at(2000)), early(8), "and not again");
        clients.told(CLIENT, at(30_000), at(2000));
        assert_eq!(clients.knock(CLIENT, at(20_000)), Ok(()), "it has a token");
        assert_eq!(
            clients.knock(CLIENT, at(30_000)),
            Ok(()),
            "as ten seconds have gone by"
        );
        assert_eq!(clients.knock(CLIENT, at(30_000)), early(10));
        clients.told(Key(8), at(1), at(0));
        assert_eq!(clients.counted.len(), 1, "who is not counted is not remembered");
    }

    #[test]
    fn a_burst_of_zero_is_one_seconds_worth() {
        let mut clients = Clients::new(Settings {
            rate: 3.0,
            burst: 0.0,
        });
        assert_eq!(
            (0..10).filter(|_| clients.knock(CLIENT, at(0)).is_ok()).count(),
            3
        );
        let mut clients = Clients::new(Settings {
            rate: 0.01,
            burst: 0.0,
        });
        assert_eq!(
            (0..10).filter(|_| clients.knock(CLIENT, at(0)).is_ok()).count(),
            1
        );
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let mut clients = Clients::new(Settings::default());
        for _ in 0..1000 {
            assert_eq!(clients.knock(CLIENT, at(0)), Ok(()));
        }
        assert!(clients.counted.is_empty());
    }

    #[test]
    fn the_memory_of_a_limit_outlasts_its_span_and_is_bounded() {
        let mut clients = Clients::new(Settings {
            rate: 0.1,
            burst: 1.0,
        });
        assert!(clients.knock(CLIENT, at(9_900)).is_ok());
        assert!(clients.knock(Key(8), at(10_100)).is_ok());
        assert!(clients.knock(CLIENT, at(19_800)).is_err());
        for number in 0..250_000 {
            assert!(clients.knock(Key(1000 + number), at(19_800)).is_ok());
            assert!(clients.counted.len() <= 2 * COUNTED);
        }
    }

    /// Two devices: each accepted one ends the other's session and is itself thrown out by the other's next.
    fn fight(clients: &mut Clients, until: u64, retry: u64) -> Vec<u64> {
        let mut session = clients.enters(CLIENT);
        let mut accepted = Vec::new();
        let mut now = 0;
        while now < until {
            now += retry;
            if clients.knock(CLIENT, at(now)).is_ok() {
                let newer = clients.enters(CLIENT);
                clients.kicked_out(session.take().unwrap(), at(now));
                session = newer;
                accepted.push(now);
            }
        }
        clients.ended(session.unwrap());
        accepted
    }

    #[test]
    fn twins_are_seen_and_slowed_down() {
        let mut clients = Clients::new(Settings::default());
        let accepted = fight(&mut clients, 600_000, 100);
        assert!(accepted.len() < 25, "{accepted:?}");
        let pauses: Vec<u64> = accepted.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(
            pauses[..9],
            [100, 100, 100, 1000, 2000, 4000, 8000, 16_000, 32_000]
        );
        assert!(pauses[9..].iter().all(|pause| *pause == 60_000));
        assert_eq!(clients.open(), 0);
    }

    #[test]
    fn a_device_that_comes_and_goes_is_no_twin() {
        let mut clients = Clients::new(Settings::default());
        for number in 0..1000 {
            assert_eq!(clients.knock(CLIENT, at(number * 2000)), Ok(()));
            let session = clients.enters(CLIENT).unwrap();
            clients.ended(session);
        }
        assert_eq!(clients.open(), 0);
    }

    #[test]
    fn a_device_with_a_broken_link_now_and_then_is_no_twin() {
        let mut clients = Clients::new(Settings::default());
        let mut session = clients.enters(CLIENT).unwrap();
        for number in 1..100 {
            assert_eq!(clients.knock(CLIENT, at(number * 120_000)), Ok(()));
            let newer = clients.enters(CLIENT).unwrap();
            clients.kicked_out(session, at(number * 120_000));
            session = newer;
        }
        clients.ended(session);
    }

    #[test]
    fn sessions_that_nobody_kicks_out_are_no_twins() {
        let mut clients = Clients::new(Settings::default());
        // A broker that lets them be, and one that is slow to notice that the old ones have left.
        let sessions: Vec<_> = (0..100).map(|_| clients.enters(CLIENT).unwrap()).collect();
        assert_eq!(clients.knock(CLIENT, at(1)), Ok(()));
        for session in sessions {
            clients.ended(session);
        }
        assert_eq!(clients.knock(CLIENT, at(2)), Ok(()));
        assert_eq!(clients.open(), 0);
    }

    #[test]
    fn open_sessions_are_bounded() {
        let mut clients = Clients::new(Settings::default());
        clients.room = 1000;
        let sessions: Vec<_> = (0..).map_while(|number| clients.enters(Key(number))).collect();
        assert_eq!(sessions.len(), 1000);
        for session in sessions {
            clients.ended(session);
        }
        assert_eq!(clients.open(), 0);
    }
}
