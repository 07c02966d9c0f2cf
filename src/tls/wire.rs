//! The presentation language of TLS (RFC 8446 section 3), read from a slice that is there as a whole.

/// Takes values off the front of some bytes; `None` when there are fewer than asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn uint8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn uint16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn uint24(&mut self) -> Option<u32> {
        self.array()
            .map(|[high, middle, low]| u32::from_be_bytes([0, high, middle, low]))
    }

    pub(super) fn uint32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn uint64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// `opaque data<0..2^8-1>`.
    pub(super) fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = self.uint8()?;
        self.take(usize::from(length))
    }

    /// `opaque data<0..2^16-1>`.
    pub(super) fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.uint16()?;
        self.take(usize::from(length))
    }

    /// `opaque data<0..2^24-1>`.
    pub(super) fn vector24(&mut self) -> Option<&'a [u8]> {
        let length = self.uint24()?;
        self.take(usize::try_from(length).ok()?)
    }

    /// Everything that is left.
    pub(super) const fn rest(self) -> &'a [u8] {
        self.0
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
}
