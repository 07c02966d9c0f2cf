//! The ways in which an attempt of a device can end: a closed set, so that the counts add up.

use std::io;

/// How far an attempt has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// No TCP connection yet.
    #[default]
    Dial,
    /// In the TLS handshake.
    Tls,
    /// The CONNECT is sent.
    Connack,
}

/// Why an attempt ended without a CONNACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// No TCP connection: refused, no route, timed out by the kernel.
    Unreachable,
    /// Closed or reset before the TLS handshake was done.
    Shed,
    /// The TLS handshake failed, by an alert or for what the other side presented.
    Tls,
    /// Closed after the CONNECT, without a CONNACK.
    Closed,
    /// Reset after the CONNECT.
    Reset,
    /// What came was no MQTT, or no CONNACK.
    NotMqtt,
    /// The device's patience was over before there was a TCP connection.
    ImpatientDial,
    /// The device's patience was over during the TLS handshake.
    ImpatientTls,
    /// The device's patience was over before the CONNACK came.
    ImpatientConnack,
    /// The device lost its network in the middle of the attempt.
    NetworkLost,
    /// The generator's own fault: no descriptor, no port, no such source address.
    Own,
}

impl Loss {
    /// Every way.
    pub const ALL: [Self; 11] = [
        Self::Unreachable,
        Self::Shed,
        Self::Tls,
        Self::Closed,
        Self::Reset,
        Self::NotMqtt,
        Self::ImpatientDial,
        Self::ImpatientTls,
        Self::ImpatientConnack,
        Self::NetworkLost,
        Self::Own,
    ];

    /// The word in JSON and tables.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Shed => "shed",
            Self::Tls => "tls",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::NotMqtt => "not-mqtt",
            Self::ImpatientDial => "gave-up-dialling",
            Self::ImpatientTls => "gave-up-in-tls",
            Self::ImpatientConnack => "gave-up-waiting",
            Self::NetworkLost => "network-lost",
            Self::Own => "generator",
        }
    }

    /// Whether the device gave up.
    pub const fn is_impatience(self) -> bool {
        matches!(
            self,
            Self::ImpatientDial | Self::ImpatientTls | Self::ImpatientConnack
        )
    }

    /// Patience was over in this stage.
    pub(super) const fn impatient(stage: Stage) -> Self {
        match stage {
            Stage::Dial => Self::ImpatientDial,
            Stage::Tls => Self::ImpatientTls,
            Stage::Connack => Self::ImpatientConnack,
        }
    }

    pub(super) fn of_dial(error: &io::Error) -> Self {
        use rustix::io::Errno;
        let errno = Errno::from_io_error(error);
        let own = [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::ADDRNOTAVAIL,
            Errno::ADDRINUSE,
            Errno::INVAL,
        ];
        if errno.is_some_and(|errno| own.contains(&errno)) {
            Self::Own
        } else {
            Self::Unreachable
        }
    }

    pub(super) fn of_handshake(error: &io::Error) -> Self {
        match error.kind() {
            // How tokio-rustls hands on an error of rustls', alerts among them.
            io::ErrorKind::InvalidData => Self::Tls,
            _ => Self::Shed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        let mut words = Loss::ALL.map(Loss::word);
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]), "{words:?}");
    }

    #[test]
    fn what_is_our_own_fault_is_told_from_what_is_not() {
        for (errno, expected) in [
            (rustix::io::Errno::CONNREFUSED, Loss::Unreachable),
            (rustix::io::Errno::HOSTUNREACH, Loss::Unreachable),
            (rustix::io::Errno::MFILE, Loss::Own),
            (rustix::io::Errno::ADDRNOTAVAIL, Loss::Own),
        ] {
            assert_eq!(Loss::of_dial(&errno.into()), expected, "{errno}");
        }
    }
}
