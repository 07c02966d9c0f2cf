//! The devices of a fleet, small enough for ten million of them.

use std::time::Duration;

use super::scenario::{Fleet as Settings, Resumption};
use crate::admission::gate::Class;
use crate::fleet::mix::Mix;
use crate::mqtt::Version;
use crate::reconnect::{Backoff, Schedule, ScheduleError, from_seed, promised};

/// What the client ids begin with, as in a storm over the wire; at least so many digits follow.
const PREFIX: &str = "device-";
const DIGITS: usize = 6;
const MOST_DIGITS: usize = 10;

/// One device that is not connected. 32 bytes, so that each is in one line of the cache; a test holds it.
#[derive(Clone, Debug)]
#[repr(align(32))]
struct Device {
    /// Its own stream, so that no device's delays depend on another's.
    random: fastrand::Rng,
    backoff: Backoff,
    /// Attempts since the network was back.
    attempts: u32,
    /// Place in [`Fleet::kinds`].
    kind: u16,
    resumes: bool,
}

/// What devices have in common.
#[derive(Clone, Copy, Debug)]
struct Kind {
    schedule: Schedule,
    version: Version,
    /// Waits as long as `retry-after-ms` says.
    heeds: bool,
}

/// All devices, by number.
#[derive(Debug)]
pub(super) struct Fleet {
    devices: Vec<Device>,
    kinds: Vec<Kind>,
    /// Of the device that was asked for last: made anew for each attempt, as ten million names do not fit.
    name: String,
}

impl Fleet {
    /// The devices of `settings`, at the beginning of their schedules.
    pub(super) fn new(settings: &Settings, seed: u64) -> Result<Self, ScheduleError> {
        let kinds = kinds(settings)?;
        let mut fleet = Self {
            devices: Vec::with_capacity(settings.devices as usize),
            kinds,
            name: PREFIX.to_owned(),
        };
        for number in 0..settings.devices {
            let traits = Traits::of(number, seed, settings);
            let device = Device {
                random: from_seed(seed, fleet.name(number)),
                backoff: Backoff::new(),
                attempts: 0,
                kind: traits.kind(&settings.mix, number),
                resumes: traits.resumes,
            };
            fleet.devices.push(device);
        }
        Ok(fleet)
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.devices.len()).unwrap_or(u32::MAX)
    }

    /// The client id: that of the same device in a storm over the wire.
    pub(super) fn name(&mut self, number: u32) -> &str {
        let mut digits = [b'0'; MOST_DIGITS];
        let mut rest = number;
        for digit in digits.iter_mut().rev() {
            *digit += (rest % 10) as u8;
            rest /= 10;
        }
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        self.name.truncate(PREFIX.len());
        self.name.extend(
            digits
                .iter()
                .skip(zeros.min(MOST_DIGITS - DIGITS))
                .copied()
                .map(char::from),
        );
        &self.name
    }

    /// What it speaks.
    pub(super) fn version(&self, number: u32) -> Version {
        self.kind(number).map_or(Version::V3_1_1, |kind| kind.version)
    }

    /// What its ClientHello asks for.
    pub(super) fn class(&self, number: u32) -> Class {
        match self.devices.get(number as usize) {
            Some(device) if device.resumes => Class::Resumed,
            _ => Class::Full,
        }
    }

    /// The pause before its next attempt; `told` is the `retry-after-ms` of a refusal, which not every device heeds.
    pub(super) fn pause(&mut self, number: u32, told: Option<Duration>) -> Duration {
        let Some(device) = self.devices.get_mut(number as usize) else {
            return Duration::MAX;
        };
        let Some(kind) = self.kinds.get(usize::from(device.kind)) else {
            return Duration::MAX;
        };
        // The schedule goes on either way, as it does in `Reconnect`.
        let scheduled = device.backoff.next(&kind.schedule, &mut device.random);
        match told {
            Some(told) if kind.heeds => promised(told, &kind.schedule, &mut device.random),
            _ => scheduled,
        }
    }

    /// A random time up to `most`, from its own stream.
    pub(super) fn up_to(&mut self, number: u32, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        self.devices
            .get_mut(number as usize)
            .map_or(Duration::ZERO, |device| {
                Duration::from_nanos(device.random.u64(0..=most))
            })
    }

    /// Has a look at one who will knock soon, which brings it into the cache. Of many in a row they come side by side; each
    /// at its knock would come alone, and be waited for.
    pub(super) fn foresee(&self, number: u32) {
        std::hint::black_box(self.attempts(number));
    }

    /// Counts one more attempt.
    pub(super) fn attempted(&mut self, number: u32) {
        if let Some(device) = self.devices.get_mut(number as usize) {
            device.attempts = device.attempts.saturating_add(1);
        }
    }

    /// Attempts so far.
    pub(super) fn attempts(&self, number: u32) -> u32 {
        self.devices
            .get(number as usize)
            .map_or(0, |device| device.attempts)
    }

    fn kind(&self, number: u32) -> Option<&Kind> {
        let device = self.devices.get(number as usize)?;
        self.kinds.get(usize::from(device.kind))
    }
}

/// For each policy of the mix: 3.1.1, 5.0, and 5.0 that heeds.
const VARIANTS: [(Version, bool); 3] = [
    (Version::V3_1_1, false),
    (Version::V5, false),
    (Version::V5, true),
];

fn kinds(settings: &Settings) -> Result<Vec<Kind>, ScheduleError> {
    let schedules = settings.mix.schedules(&settings.pauses)?;
    let of_schedule = |schedule: Schedule| {
        VARIANTS.map(|(version, heeds)| Kind {
            schedule,
            version,
            heeds,
        })
    };
    Ok(schedules.into_iter().flat_map(of_schedule).collect())
}

/// What a device is by chance, apart from its policy. Drawn from a stream that is not the one of its delays: those stay the same
/// whatever the shares are.
struct Traits {
    variant: u16,
    resumes: bool,
}

impl Traits {
    fn of(number: u32, seed: u64, settings: &Settings) -> Self {
        let mut random =
            fastrand::Rng::with_seed((seed ^ 0x5EA0_0000_0000_0000).wrapping_add(u64::from(number) << 20));
        let (version, heeds, resumes) = (random.f64(), random.f64(), random.f64());
        let variant = match (version < settings.v5, heeds < settings.heeding) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        let Resumption { share } = settings.resumption;
        Self {
            variant,
            resumes: resumes < share,
        }
    }

    fn kind(&self, mix: &Mix, number: u32) -> u16 {
        let place = u16::try_from(mix.place_of(u64::from(number))).unwrap_or(0);
        // Seven policies at most.
        place * VARIANTS.len() as u16 + self.variant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_small() {
        assert_eq!(size_of::<Device>(), 32);
    }

    #[test]
    fn shares_are_those_that_were_asked_for() {
        let settings = Settings {
            devices: 10_000,
            v5: 0.5,
            heeding: 0.2,
            resumption: Resumption { share: 0.7 },
            ..Settings::default()
        };
        let fleet = Fleet::new(&settings, 3).unwrap();
        let share = |is: &dyn Fn(u32) -> bool| (0..10_000).filter(|number| is(*number)).count();
        let v5 = share(&|number| fleet.version(number) == Version::V5);
        let heeding = share(&|number| fleet.kind(number).unwrap().heeds);
        let resuming = share(&|number| fleet.class(number) == Class::Resumed);
        for (found, expected) in [(v5, 5000), (heeding, 1000), (resuming, 7000)] {
            assert!(usize::abs_diff(found, expected) < 200, "{found} {expected}");
        }
    }

    #[test]
    fn only_those_that_heed_do_as_they_are_told() {
        for (heeding, expected) in [(0.0, 5), (1.0, 100)] {
            let settings = Settings {
                devices: 1,
                mix: "fixed".parse().unwrap(),
                v5: 1.0,
                heeding,
                ..Settings::default()
            };
            let mut fleet = Fleet::new(&settings, 3).unwrap();
            let pause = fleet.pause(0, Some(Duration::from_secs(100)));
            assert_eq!(pause.as_secs() / 5 * 5, expected, "{pause:?}");
        }
    }
}
