//! Closed label sets, and metrics that are resolved once at start and found by index afterwards: no lookup by name per
//! event, and no series that traffic could add.

use std::marker::PhantomData;

use super::ending::{Decision, HandshakeFailure, HandshakeKind, Phase, Side, TlsVersion};
use crate::admission::gate::Turned;
use crate::admission::sources::Exceeded;
use crate::mqtt::{Protocol, Version};
use crate::reason::Reason;

/// A closed set of label values.
pub(super) trait Label: Copy + 'static {
    /// Every value, in the order of [`Self::index`].
    const ALL: &'static [Self];
    /// Position in [`Self::ALL`].
    fn index(self) -> usize;
    /// As it is scraped.
    fn word(self) -> &'static str;
}

/// Something for each value of a label.
pub(super) struct Each<L, T> {
    items: Box<[T]>,
    label: PhantomData<L>,
}

impl<L: Label, T> Each<L, T> {
    pub(super) fn build(item: impl FnMut(L) -> T) -> Self {
        Self {
            items: L::ALL.iter().copied().map(item).collect(),
            label: PhantomData,
        }
    }

    /// The item of `label`. `None` only if `index` and `ALL` disagreed, which a test rules out.
    pub(super) fn get(&self, label: L) -> Option<&T> {
        self.items.get(label.index())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &T)> {
        L::ALL.iter().map(|label| label.word()).zip(&self.items)
    }
}

/// Why a socket was closed before TLS: label `reason` of `seawall_shed_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shed {
    /// No token for a handshake of its class, and none in time.
    HandshakeRate,
    /// More than `handshake.max_waiting` wait for a place, and others go first.
    HandshakeFull,
    /// Too old for its client's patience before its turn came.
    WaitedTooLong,
    /// Its address connects more often than `admission.per_source.rate`.
    SourceRate,
    /// Its address has `admission.per_source.max_connections` open.
    SourceConnections,
    /// `listen.max_connections` are open.
    MaxConnections,
    /// No file descriptor was left; the spare one was used to accept and close.
    Descriptors,
    /// A PROXY protocol header from somebody who is not trusted, one that can't be read, or none where one is required.
    ProxyHeader,
}

impl Shed {
    /// Every reason, in the order of the enum.
    pub const ALL: [Self; 8] = [
        Self::HandshakeRate,
        Self::HandshakeFull,
        Self::WaitedTooLong,
        Self::SourceRate,
        Self::SourceConnections,
        Self::MaxConnections,
        Self::Descriptors,
        Self::ProxyHeader,
    ];

    /// The metric label and audit word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::HandshakeRate => "handshake-rate",
            Self::HandshakeFull => "handshake-full",
            Self::WaitedTooLong => "waited-too-long",
            Self::SourceRate => "source-rate",
            Self::SourceConnections => "source-connections",
            Self::MaxConnections => "max-connections",
            Self::Descriptors => "descriptors",
            Self::ProxyHeader => "proxy-header",
        }
    }
}

/// What came of reading changed files: label `result` of `seawall_reloads_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reload {
    /// What was read is in effect.
    Done,
    /// It is but for keys that take effect on restart, which stay as they were.
    Partial,
    /// Something is wrong with it, or nothing else but such keys had changed: what was in effect still is.
    Refused,
}

impl Reload {
    /// Every result, in the order of the enum.
    pub const ALL: [Self; 3] = [Self::Done, Self::Partial, Self::Refused];

    /// The metric label and audit word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Partial => "partial",
            Self::Refused => "refused",
        }
    }
}

impl From<Turned> for Shed {
    fn from(reason: Turned) -> Self {
        match reason {
            Turned::Rate => Self::HandshakeRate,
            Turned::Full => Self::HandshakeFull,
            Turned::TooLate => Self::WaitedTooLong,
        }
    }
}

impl From<Exceeded> for Shed {
    fn from(limit: Exceeded) -> Self {
        match limit {
            Exceeded::Rate => Self::SourceRate,
            Exceeded::Connections => Self::SourceConnections,
        }
    }
}

impl Label for Exceeded {
    const ALL: &'static [Self] = &[Self::Rate, Self::Connections];

    fn index(self) -> usize {
        self as usize
    }

    fn word(self) -> &'static str {
        Shed::from(self).word()
    }
}

/// Label `kind` of `seawall_handshakes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeOutcome {
    Full,
    Resumed,
    Failed,
    Timeout,
}

impl HandshakeOutcome {
    pub(super) const fn of_failure(failure: HandshakeFailure) -> Self {
        match failure {
            HandshakeFailure::Timeout | HandshakeFailure::TooSlow => Self::Timeout,
            _ => Self::Failed,
        }
    }
}

impl From<HandshakeKind> for HandshakeOutcome {
    fn from(kind: HandshakeKind) -> Self {
        match kind {
            HandshakeKind::Full => Self::Full,
            HandshakeKind::Resumed => Self::Resumed,
        }
    }
}

impl Label for HandshakeOutcome {
    const ALL: &'static [Self] = &[Self::Full, Self::Resumed, Self::Failed, Self::Timeout];

    fn index(self) -> usize {
        self as usize
    }

    fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
        }
    }
}

/// Label `version` of `seawall_handshakes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeVersion {
    V1_2,
    V1_3,
    /// It failed before a version was agreed.
    None,
}

impl From<TlsVersion> for HandshakeVersion {
    fn from(version: TlsVersion) -> Self {
        match version {
            TlsVersion::V1_2 => Self::V1_2,
            TlsVersion::V1_3 => Self::V1_3,
        }
    }
}

impl Label for HandshakeVersion {
    const ALL: &'static [Self] = &[Self::V1_2, Self::V1_3, Self::None];

    fn index(self) -> usize {
        self as usize
    }

    fn word(self) -> &'static str {
        match self {
            Self::V1_2 => TlsVersion::V1_2.word(),
            Self::V1_3 => TlsVersion::V1_3.word(),
            Self::None => "none",
        }
    }
}

/// Label `decision` of `seawall_connects_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecisionLabel {
    Admitted,
    Refused,
    Invalid,
    Timeout,
    Left,
}

impl From<Decision> for DecisionLabel {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Admitted { .. } => Self::Admitted,
            Decision::Refused(_) => Self::Refused,
            Decision::Invalid(_) => Self::Invalid,
            Decision::TimedOut => Self::Timeout,
            Decision::Left => Self::Left,
        }
    }
}

impl Label for DecisionLabel {
    const ALL: &'static [Self] = &[
        Self::Admitted,
        Self::Refused,
        Self::Invalid,
        Self::Timeout,
        Self::Left,
    ];

    fn index(self) -> usize {
        self as usize
    }

    fn word(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
            Self::Timeout => "timeout",
            Self::Left => "left",
        }
    }
}

/// The CONNACK codes that the specifications name (MQTT 3.1.1 section 3.2.2.3, MQTT 5.0 section 3.2.2.2).
const CONNACK_CODES: [u8; 27] = [
    0, 1, 2, 3, 4, 5, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 140, 144, 149, 151, 153, 154,
    155, 156, 157, 159,
];

/// Something for each value of label `code`: the known codes in decimal, and "other" for what a broker made up.
pub(super) struct EachCode<T> {
    known: Box<[T]>,
    other: T,
}

impl<T> EachCode<T> {
    pub(super) fn build(mut item: impl FnMut(&str) -> T) -> Self {
        Self {
            known: CONNACK_CODES.iter().map(|code| item(&code.to_string())).collect(),
            other: item("other"),
        }
    }

    pub(super) fn get(&self, code: u8) -> &T {
        let position = CONNACK_CODES.iter().position(|known| *known == code);
        position
            .and_then(|position| self.known.get(position))
            .unwrap_or(&self.other)
    }
}

/// For the enums that keep `ALL` and `word` with their own declaration.
macro_rules! label {
    ($name:ty, $index:expr) => {
        impl Label for $name {
            const ALL: &'static [Self] = &<$name>::ALL;

            fn index(self) -> usize {
                let index: fn(Self) -> usize = $index;
                index(self)
            }

            fn word(self) -> &'static str {
                <$name>::word(self)
            }
        }
    };
}

label!(Phase, |phase| phase as usize);
label!(Side, |side| side as usize);
label!(Shed, |shed| shed as usize);
label!(Reload, |reload| reload as usize);
label!(Reason, |reason| reason as usize);
label!(HandshakeFailure, |failure| failure as usize);
label!(Protocol, |protocol| match protocol {
    Protocol::Known(Version::V3_1) => 0,
    Protocol::Known(Version::V3_1_1) => 1,
    Protocol::Known(Version::V5) => 2,
    Protocol::Other => 3,
});

impl Label for HandshakeKind {
    const ALL: &'static [Self] = &[Self::Full, Self::Resumed];

    fn index(self) -> usize {
        self as usize
    }

    fn word(self) -> &'static str {
        HandshakeKind::word(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Debug;

    use super::*;

    fn holds<L: Label + PartialEq + Debug>() {
        let mut words = BTreeSet::new();
        for (position, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), position, "{label:?}");
            assert!(words.insert(label.word()), "{label:?} shares its word");
        }
    }

    #[test]
    fn every_label_is_found_at_its_place_and_has_a_word_of_its_own() {
        holds::<Phase>();
        holds::<Side>();
        holds::<Shed>();
        holds::<Reload>();
        holds::<Reason>();
        holds::<HandshakeFailure>();
        holds::<HandshakeKind>();
        holds::<HandshakeOutcome>();
        holds::<HandshakeVersion>();
        holds::<DecisionLabel>();
        holds::<Protocol>();
    }

    #[test]
    fn a_known_connack_code_is_its_own_decimal_and_any_other_byte_is_other() {
        let words = EachCode::build(ToOwned::to_owned);
        for code in 0..=u8::MAX {
            let known = matches!(code, 0..=5 | 128..=138 | 140 | 144 | 149 | 151 | 153..=157 | 159);
            let expected = if known {
                code.to_string()
            } else {
                "other".to_owned()
            };
            assert_eq!(*words.get(code), expected);
        }
    }
}
