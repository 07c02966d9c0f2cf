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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet of this type with so many bytes after its header, and the Remaining Length spelt by hand.
    fn packet(packet_type: u8, remaining_length: &[u8], body: usize) -> Vec<u8> {
        let mut packet = vec![packet_type << 4];
        packet.extend(remaining_length);
        packet.resize(packet.len() + body, 0xe0);
        packet
    }

    #[test]
    fn byte_by_byte() {
        let mut framing = Framing::new();
        assert_eq!(
            (framing.position(), framing.last_type()),
            (Position::Boundary, None)
        );
        let steps = [
            (0xc0, Position::Header, 12),
            (0x00, Position::Boundary, 12),
            (0x32, Position::Header, 3),
            (0x82, Position::Header, 3),
            (0x00, Position::Body(2), 3),
            (0xe0, Position::Body(1), 3),
            (0x00, Position::Boundary, 3),
            (0xe0, Position::Header, DISCONNECT),
            (0x00, Position::Boundary, DISCONNECT),
        ];
        for (byte, position, packet_type) in steps {
            framing.feed(&[byte]);
            assert_eq!(
                (framing.position(), framing.last_type()),
                (position, Some(packet_type)),
                "{byte:02x}"
            );
            assert_eq!(framing.at_boundary(), position == Position::Boundary);
        }
    }

    #[test]
    fn the_longest_packet() {
        let mut framing = Framing::new();
        framing.feed(&[0x30, 0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(framing.position(), Position::Body(268_435_455));
        framing.feed(&vec![0; 1 << 20]);
        assert_eq!(framing.position(), Position::Body(268_435_455 - (1 << 20)));
    }

    #[test]
    fn lost_for_good() {
        let mut framing = Framing::new();
        framing.feed(&[0x30, 0xff, 0xff, 0xff]);
        assert_eq!(framing.position(), Position::Header);
        framing.feed(&[0x80]);
        assert_eq!(framing.position(), Position::Lost);
        assert_eq!(framing.feed_to_boundary(&[0xe0, 0x00, 0xe0]), 3);
        framing.feed(&[0xe0, 0x00]);
        assert_eq!(
            (framing.position(), framing.last_type()),
            (Position::Lost, Some(3))
        );
        assert!(!framing.at_boundary());
    }

    #[test]
    fn feeding_up_to_a_boundary_stops_there() {
        let stream = [
            packet(3, &[5], 5),
            packet(12, &[0], 0),
            packet(3, &[0x80, 0x01], 128),
        ]
        .concat();
        let mut framing = Framing::new();
        assert_eq!(framing.feed_to_boundary(&[]), 0);
        assert_eq!(framing.feed_to_boundary(&stream[..3]), 3);
        assert_eq!(framing.position(), Position::Body(4));
        assert_eq!(framing.feed_to_boundary(&stream[3..]), 4);
        assert_eq!(framing.position(), Position::Boundary);
        assert_eq!(framing.feed_to_boundary(&stream[7..]), 2);
        assert_eq!(framing.last_type(), Some(12));
        assert_eq!(framing.feed_to_boundary(&stream[9..]), 131);
        assert_eq!(framing.position(), Position::Boundary);
    }

    #[test]
    fn small_enough_for_two_a_connection() {
        assert!(size_of::<Framing>() <= 12);
    }

    fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let one = (1u8..16, 0usize..400).prop_map(|(packet_type, body)| {
            let length = if body < 128 {
                vec![body as u8]
            } else {
                vec![(body % 128) as u8 | 0x80, (body / 128) as u8]
            };
            packet(packet_type, &length, body)
        });
        prop::collection::vec(one, 0..8)
    }

    proptest! {
        #[test]
        fn any_fragmentation_ends_at_the_same_place(
            packets in packets(),
            cut in any::<prop::sample::Index>(),
            sizes in prop::collection::vec(1usize..50, 1..20),
        ) {
            let stream = packets.concat();
            let end = cut.index(stream.len() + 1);
            let mut framing = Framing::new();
            let mut rest = &stream[..end];
            for size in sizes.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at(rest.len().min(*size));
                framing.feed(now);
                rest = later;
            }

            let mut start = 0;
            let mut expected = (Position::Boundary, None);
            for packet in packets.iter().filter(|packet| !packet.is_empty()) {
                if start >= end {
                    break;
                }
                let header = if packet.len() > 129 { 3 } else { 2 };
                let remaining = (start + packet.len()).saturating_sub(end);
                let position = match remaining {
                    0 => Position::Boundary,
                    _ if end - start < header => Position::Header,
                    _ => Position::Body(remaining as u32),
                };
                expected = (position, Some(packet[0] >> 4));
                start += packet.len();
            }
            prop_assert_eq!((framing.position(), framing.last_type()), expected);
        }

        #[test]
        fn any_bytes_are_followed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut whole = Framing::new();
            whole.feed(&bytes);
            let mut single = Framing::new();
            for byte in &bytes {
                prop_assert_eq!(single.feed_to_boundary(&[*byte]), 1);
            }
            prop_assert_eq!(whole, single);
        }
    }
}
