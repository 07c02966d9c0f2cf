//! What a fleet is made of.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::client::Target;
use super::identity::{Credentials, Identity};
use super::mix::{Mix, Pauses};
use crate::mqtt::Version;
use crate::reconnect::{Schedule, ScheduleError, from_seed};

/// Steps of additive recurrences that fill the interval evenly, side by side and beside that of [`Mix::place_of`]: powers
/// of 1 / 1.3247…, the plastic number, in units of 2⁻⁶⁴.
const GROUP_STEP: u64 = 0xC13F_A9A9_02A6_328F;
const SESSION_STEP: u64 = 0x91E1_0DA5_C79E_7B1D;

/// Own addresses of devices begin at 127.16.0.1: past those that a trial's services listen on.
const FIRST_SOURCE: u32 = 0x7F10_0001;
/// So many end before 127.255.255.255, which is no address of a host.
const MOST_SOURCES: usize = 0xEF_FFFE;

/// Which versions the devices speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// 3.1.1, all of them.
    V3_1_1,
    /// 5.0, all of them.
    V5,
    /// Every second one speaks 5.0, the others 3.1.1.
    Both,
}

/// Where devices dial from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// As the system chooses.
    System,
    /// This many addresses of 127/8, in turn; at least one.
    Loopback(usize),
    /// These addresses of the machine, in turn; at least one.
    These(Vec<IpAddr>),
}

/// What a fleet is made of.
#[derive(Clone, Debug)]
pub struct Population {
    /// Where all devices connect.
    pub target: Target,
    /// Numbers of the devices: a part of the fleet where several processes share it.
    pub numbers: Range<usize>,
    /// Client ids begin with this; the number follows.
    pub prefix: String,
    /// When they try again.
    pub mix: Mix,
    /// The delays of the policies.
    pub pauses: Pauses,
    /// Dial to CONNACK, after which a device gives up.
    pub patience: Duration,
    /// Seconds.
    pub keep_alive: u16,
    /// Versions of MQTT.
    pub protocol: Protocol,
    /// Hundredths of the devices whose session the broker keeps.
    pub persistent: u8,
    /// What they log in with.
    pub credentials: Option<Credentials>,
    /// Whether each device keeps its tickets. Without, all handshakes are full if `target` has resumption disabled.
    pub resumes: bool,
    /// Whether devices heed `retry-after-ms`.
    pub heeds_retry_after: bool,
    /// Where they dial from.
    pub sources: Sources,
    /// Devices that lose their networks together, by size; relative. At least one.
    pub groups: Vec<u32>,
    /// Devices are switched on within this time after their tower is up; `None`: they are on, and fill the target.
    pub boot: Option<Duration>,
    /// The same seed gives the same delays.
    pub seed: u64,
}

/// What tells one device from the others.
pub(super) struct Traits {
    pub(super) identity: Identity,
    pub(super) target: Target,
    pub(super) source: Option<IpAddr>,
    pub(super) schedule: Schedule,
    pub(super) random: fastrand::Rng,
    pub(super) group: usize,
}

impl Population {
    /// The devices one by one.
    pub(super) fn devices(&self) -> Result<impl Iterator<Item = Traits>, ScheduleError> {
        let schedules = self.mix.schedules(&self.pauses)?;
        // A mix has at least one policy.
        let first = schedules.first().copied().ok_or(ScheduleError::BaseIsZero)?;
        let credentials = self.credentials.clone().map(Arc::new);
        Ok(self.numbers.clone().map(move |number| {
            let schedule = schedules.get(self.mix.place_of(number as u64)).copied();
            self.device(number, schedule.unwrap_or(first), credentials.clone())
        }))
    }

    /// Devices of this part of the fleet that are in a group.
    pub fn size_of_group(&self, group: usize) -> usize {
        let numbers = self.numbers.clone();
        numbers.filter(|number| self.group_of(*number) == group).count()
    }

    fn device(&self, number: usize, schedule: Schedule, credentials: Option<Arc<Credentials>>) -> Traits {
        let client_id = format!("{}{number:06}", self.prefix);
        let version = match self.protocol {
            Protocol::Both if number.is_multiple_of(2) => Version::V3_1_1,
            Protocol::V3_1_1 => Version::V3_1_1,
            Protocol::V5 | Protocol::Both => Version::V5,
        };
        let target = if self.resumes {
            self.target.with_own_sessions()
        } else {
            self.target.clone()
        };
        Traits {
            random: from_seed(self.seed, &client_id),
            identity: Identity {
                client_id,
                version,
                keep_alive: self.keep_alive,
                persistent: place(number, SESSION_STEP, 100) < u64::from(self.persistent),
                credentials,
                number,
            },
            target,
            source: self.sources.of(number),
            schedule,
            group: self.group_of(number),
        }
    }

    fn group_of(&self, number: usize) -> usize {
        let total: u64 = self.groups.iter().map(|size| u64::from(*size)).sum();
        let at = place(number, GROUP_STEP, total.max(1));
        let mut end = 0;
        self.groups
            .iter()
            .position(|size| {
                end += u64::from(*size);
                at < end
            })
            .unwrap_or(0)
    }
}

impl Sources {
    fn of(&self, number: usize) -> Option<IpAddr> {
        match self {
            Self::System => None,
            Self::Loopback(count) => {
                let offset = number % (*count).clamp(1, MOST_SOURCES);
                let offset = u32::try_from(offset).unwrap_or(0);
                Some(IpAddr::V4(Ipv4Addr::from(FIRST_SOURCE + offset)))
            }
            Self::These(addresses) => addresses.get(number % addresses.len().max(1)).copied(),
        }
    }
}

/// Where a device falls in `0..of`: every stretch of neighbours is spread over it evenly.
fn place(number: usize, step: u64, of: u64) -> u64 {
    let turn = (number as u64).wrapping_mul(step);
    // The upper half of a product of two 64-bit numbers fits.
    ((u128::from(turn) * u128::from(of)) >> 64) as u64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::fleet) fn population(target: &Target, devices: usize) -> Population {
        let pause = Duration::from_millis(200);
        Population {
            target: target.clone(),
            numbers: 0..devices,
            prefix: "device-".into(),
            mix: Mix::all(crate::reconnect::Policy::Fixed),
            pauses: Pauses {
                fixed: pause,
                base: pause,
                multiplier: 2.0,
                cap: 10 * pause,
            },
            patience: Duration::from_secs(5),
            keep_alive: 60,
            protocol: Protocol::Both,
            persistent: 0,
            credentials: None,
            resumes: false,
            heeds_retry_after: false,
            sources: Sources::System,
            groups: vec![1],
            boot: None,
            seed: 1,
        }
    }

    fn somewhere() -> Target {
        Target {
            address: "127.0.0.1:1".parse().unwrap(),
            tls: None,
        }
    }

    #[test]
    fn shares_do_not_depend_on_each_other() {
        let population = Population {
            mix: "fixed:50,full:50".parse().unwrap(),
            persistent: 40,
            groups: vec![60, 40],
            ..population(&somewhere(), 10_000)
        };
        let mut cells = [0_u32; 16];
        for device in population.devices().unwrap() {
            let fixed = usize::from(device.schedule.policy() == crate::reconnect::Policy::Fixed);
            let v5 = usize::from(device.identity.version == Version::V5);
            cells[device.group * 8 + usize::from(device.identity.persistent) * 4 + fixed * 2 + v5] += 1;
        }
        for (cell, count) in cells.into_iter().enumerate() {
            let group = if cell & 8 == 0 { 0.6 } else { 0.4 };
            let session = if cell & 4 == 0 { 0.6 } else { 0.4 };
            let expected = 10_000.0 * group * session / 4.0;
            assert!(
                (f64::from(count) - expected).abs() < 60.0,
                "{cell:04b}: {count}, not {expected}"
            );
        }
        assert!(population.size_of_group(0).abs_diff(6000) < 20);
        assert_eq!(population.size_of_group(0) + population.size_of_group(1), 10_000);
    }

    #[test]
    fn parts_of_a_fleet_are_the_fleet() {
        let whole = population(&somewhere(), 100);
        let identifiers = |numbers: Range<usize>| {
            let part = Population {
                numbers,
                ..whole.clone()
            };
            let devices = part.devices().unwrap();
            devices
                .map(|device| device.identity.client_id)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            [identifiers(0..33), identifiers(33..100)].concat(),
            identifiers(0..100)
        );
        assert_eq!(identifiers(0..2), ["device-000000", "device-000001"]);
    }

    #[test]
    fn every_device_has_its_address() {
        let last = MOST_SOURCES - 1;
        for (sources, number, expected) in [
            (Sources::System, 7, None),
            (Sources::Loopback(1000), 0, Some("127.16.0.1")),
            (Sources::Loopback(1000), 1255, Some("127.16.1.0")),
            (Sources::Loopback(usize::MAX), last, Some("127.255.255.254")),
            (
                Sources::These(vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()]),
                3,
                Some("::1"),
            ),
        ] {
            let found = sources.of(number).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{sources:?}");
        }
    }
}
