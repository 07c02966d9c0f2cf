//! The data types of MQTT (5.0 section 1.5; 3.1.1 sections 1.5 and 2.2.3), read from a slice.

/// Why a packet breaks its specification, in the words of MQTT 5.0 section 1.2. 3.x knows only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It can't be parsed: 0x81.
    Malformed,
    /// It can be parsed, and says what it must not: 0x82.
    Protocol,
}

/// The variable byte integer at the front of some bytes, of which more may follow (5.0 section 1.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VariableByteInteger {
    /// Its last byte isn't there yet.
    Partial,
    /// All of it is there.
    Whole {
        /// 0 to 268,435,455.
        value: usize,
        /// How many bytes it takes, 1 to 4.
        length: usize,
        /// Whether fewer bytes would not do: a MUST in 5.0 [MQTT-1.5.5-1], unsaid before.
        shortest: bool,
    },
    /// The fourth byte asks for a fifth: malformed in every version.
    Overlong,
}

impl VariableByteInteger {
    const MOST_BYTES: usize = 4;

    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut value = 0;
        for (index, &byte) in bytes.iter().take(Self::MOST_BYTES).enumerate() {
            value |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Self::Whole {
                    value,
                    length: index + 1,
                    shortest: index == 0 || byte != 0,
                };
            }
        }
        if bytes.len() < Self::MOST_BYTES {
            Self::Partial
        } else {
            Self::Overlong
        }
    }

    /// Adds `value`, at most 268,435,455, in its shortest form.
    pub(super) fn write(out: &mut Vec<u8>, mut value: usize) {
        while value > 0x7f {
            out.push(0x80 | (value & 0x7f) as u8);
            value >>= 7;
        }
        out.push(value as u8);
    }
}

/// Takes values off the front of a part of a packet that is there as a whole: what is missing is malformed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn two_bytes(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn four_bytes(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_be_bytes)
    }

    /// A variable byte integer in its shortest form; it occurs inside of a packet in 5.0 alone.
    pub(super) fn variable_byte_integer(&mut self) -> Result<usize, Fault> {
        let VariableByteInteger::Whole {
            value,
            length,
            shortest: true,
        } = VariableByteInteger::read(self.0)
        else {
            return Err(Fault::Malformed);
        };
        self.take(length)?;
        Ok(value)
    }

    /// Binary data: two bytes of length, then as many bytes.
    pub(super) fn binary(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.two_bytes()?;
        self.take(usize::from(length))
    }

    /// A UTF-8 string without U+0000 ([MQTT-1.5.3-1, -2] in 3.1.1, [MQTT-1.5.4-1, -2] in 5.0).
    pub(super) fn text(&mut self) -> Result<&'a str, Fault> {
        let bytes = self.binary()?;
        if bytes.contains(&0) {
            return Err(Fault::Malformed);
        }
        std::str::from_utf8(bytes).map_err(|_| Fault::Malformed)
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Fault::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Fault::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }
}
