//! What came of a run.

use std::time::Duration;

use serde::Serialize;

/// One second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Second {
    /// Attempts that reached the front.
    pub knocks: u32,
    /// Closed before TLS.
    pub shed: u32,
    /// Told to come later, after a handshake.
    pub refused: u32,
    /// Reset by a broker whose queue is full, or that is not there.
    pub broken: u32,
    /// Given up by the device.
    pub gave_up: u32,
    /// CONNECTs sent to the broker.
    pub sent: u32,
    /// Logins whose device was still there.
    pub logins: u32,
    /// Logins for a device that had given up: the broker has worked for nobody.
    pub wasted: u32,
    /// Most CONNECTs at the broker.
    pub queued: u32,
    /// Processor time of the proxy, in microseconds.
    pub cpu_us: u64,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Devices in the fleet.
    pub devices: u32,
    /// Those that were back at the end.
    pub returned: u32,
    /// Seconds after the network was back at which this share of the devices was: 50, 90, 99 and 100 %; `None`: never.
    pub back: [Option<f64>; 4],
    /// Attempts of those that came back: at the median, at 99 %, most.
    pub attempts: [u32; 3],
    /// Sums over all seconds.
    pub sums: Sums,
    /// Logins as a share of what the broker could have served from the network's return until all were back or the run
    /// ended.
    pub goodput: f64,
    /// Logins as a share of those that the devices which knocked could have filled.
    pub used: f64,
    /// Most CONNECTs at the broker at a time.
    pub peak_queued: u32,
    /// Most knocks in a second.
    pub peak_knocks: u32,
    /// Cores that the busiest second of the proxy takes.
    pub peak_cores: f64,
    /// Seconds of the run until the network was back.
    pub outage: f64,
    /// Seconds from the network's return until all were back or the run ended.
    pub lasted: f64,
    /// Each second, from the loss of the connections on.
    pub seconds: Vec<Second>,
}

/// Sums over all seconds of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// As in [`Second`].
    pub knocks: u64,
    /// As in [`Second`].
    pub shed: u64,
    /// As in [`Second`].
    pub refused: u64,
    /// As in [`Second`].
    pub broken: u64,
    /// As in [`Second`].
    pub gave_up: u64,
    /// As in [`Second`].
    pub sent: u64,
    /// As in [`Second`].
    pub logins: u64,
    /// As in [`Second`].
    pub wasted: u64,
    /// As in [`Second`].
    pub cpu_us: u64,
}

/// Hundredths of the fleet that [`Outcome::back`] tells of.
pub(super) const HUNDREDTHS: [u64; 4] = [50, 90, 99, 100];

impl Sums {
    pub(super) fn of(seconds: &[Second]) -> Self {
        let mut sums = Self::default();
        for second in seconds {
            sums.knocks += u64::from(second.knocks);
            sums.shed += u64::from(second.shed);
            sums.refused += u64::from(second.refused);
            sums.broken += u64::from(second.broken);
            sums.gave_up += u64::from(second.gave_up);
            sums.sent += u64::from(second.sent);
            sums.logins += u64::from(second.logins);
            sums.wasted += u64::from(second.wasted);
            sums.cpu_us += second.cpu_us;
        }
        sums
    }

    /// Processor time of the proxy.
    pub const fn cpu(&self) -> Duration {
        Duration::from_micros(self.cpu_us)
    }
}

impl Outcome {
    /// Whether every device is back.
    pub const fn all_back(&self) -> bool {
        self.returned == self.devices
    }
}
