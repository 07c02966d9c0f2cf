//! Where one direction of an MQTT stream stands between its packets: fed as the bytes pass by, kept in a few bytes.

/// Follows the packets of one direction of a connection from their fixed headers alone ([MQTT 2.1]: type, flags,
/// Remaining Length), in any fragmentation, without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    state: State,
    /// 0: none yet; MQTT reserves that type.
    packet_type: u8,
}

/// Where the stream stands after the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Between two packets: another packet may be put in here.
    Boundary,
    /// Inside of a fixed header: how long the packet is can't be said yet.
    Header,
    /// Inside of a packet that goes on for this many bytes (at least 1).
    Body(u32),
    /// A Remaining Length went over its four bytes: there is no telling any more.
    Lost,
}

/// Packet type of DISCONNECT.
pub const DISCONNECT: u8 = 14;

impl Framing {
    /// At the boundary before the first packet that will be fed.
    pub const fn new() -> Self {
        Self {
            state: State::Boundary,
            packet_type: 0,
        }
    }

    /// Follows all of `bytes`.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() && self.state != State::Lost {
            let taken = self.feed_to_boundary(rest);
            rest = rest.get(taken..).unwrap_or_default();
        }
    }

    /// Follows `bytes` up to the next boundary and no further; returns how many were taken, at least 1 unless `bytes` is
    /// empty. Without a boundary in them, or once lost, that is all.
    pub fn feed_to_boundary(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken) {
            taken += self.step(byte, bytes.len() - taken);
            if self.state == State::Boundary {
                return taken;
            }
        }
        bytes.len()
    }

    /// Where the stream stands.
    pub const fn position(&self) -> Position {
        match self.state {
            State::Boundary => Position::Boundary,
            State::Header { .. } => Position::Header,
            State::Body { remaining } => Position::Body(remaining),
            State::Lost => Position::Lost,
        }
    }

    /// Whether the stream stands between two packets.
    pub const fn at_boundary(&self) -> bool {
        matches!(self.state, State::Boundary)
    }

    /// Type (1 to 15) of the last packet begun, whole or not; `None` before the first.
    pub const fn last_type(&self) -> Option<u8> {
        match self.packet_type {
            0 => None,
            known => Some(known),
        }
    }

    /// Takes `byte`, or where it is inside of a body as many of the `available` bytes as belong to it.
    fn step(&mut self, byte: u8, available: usize) -> usize {
        match self.state {
            State::Boundary => {
                self.packet_type = byte >> 4;
                self.state = State::Header {
                    length_bytes: 0,
                    value: 0,
                };
                1
            }
            State::Header { length_bytes, value } => {
                self.state = State::after_length_byte(byte, length_bytes, value);
                1
            }
            State::Body { remaining } => {
                let taken = u32::try_from(available).unwrap_or(u32::MAX).min(remaining);
                self.state = State::with_remaining(remaining - taken);
                taken as usize
            }
            State::Lost => available,
        }
    }
}

impl Default for Framing {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Boundary,
    Header { length_bytes: u8, value: u32 },
    Body { remaining: u32 },
    Lost,
}

impl State {
    const MOST_LENGTH_BYTES: u8 = 4;

    const fn after_length_byte(byte: u8, length_bytes: u8, value: u32) -> Self {
        let value = value | ((byte & 0x7f) as u32) << (7 * length_bytes);
        let length_bytes = length_bytes + 1;
        match byte & 0x80 {
            0 => Self::with_remaining(value),
            _ if length_bytes == Self::MOST_LENGTH_BYTES => Self::Lost,
            _ => Self::Header { length_bytes, value },
        }
    }

    const fn with_remaining(remaining: u32) -> Self {
        if remaining == 0 {
            Self::Boundary
        } else {
            Self::Body { remaining }
        }
    }
}
