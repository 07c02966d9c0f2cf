//! CRC32C (RFC 9260 appendix A): the checksum of the type `PP2_TYPE_CRC32C`. Twenty lines, and only where a balancer
//! sends it: no reason for a dependency.

/// The Castagnoli polynomial 0x1EDC6F41, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// What each value of a byte does to the remainder.
const TABLE: [u32; 256] = table();

/// The checksum of `parts`, one after the other.
pub(super) fn crc32c(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().copied().flatten();
    !bytes.fold(!0, |remainder, byte| {
        let [low, ..] = remainder.to_le_bytes();
        // A byte is always an index of the table.
        let change = TABLE.get(usize::from(low ^ byte)).copied().unwrap_or_default();
        (remainder >> 8) ^ change
    })
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            let odd = remainder & 1 == 1;
            remainder = (remainder >> 1) ^ if odd { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 section B.4, and the check value of the polynomial.
    #[test]
    fn published_examples() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for (bytes, sum) in [
            (&b""[..], 0),
            (b"123456789", 0xE306_9283),
            (&[0; 32], 0x8A91_36AA),
            (&[0xFF; 32], 0x62A8_AB43),
            (&ascending, 0x46DD_794E),
            (&descending, 0x113F_DB5C),
        ] {
            assert_eq!(crc32c(&[bytes]), sum, "{bytes:02x?}");
            let (front, back) = bytes.split_at(bytes.len() / 3);
            assert_eq!(crc32c(&[front, back]), sum, "in two parts: {bytes:02x?}");
        }
    }
}
