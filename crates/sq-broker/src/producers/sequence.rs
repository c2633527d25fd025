//! Sequence numbers: 0 to `i32::MAX`, and then 0 again.

const MODULUS: i64 = i32::MAX as i64 + 1;

/// The sequence `by` records after `sequence`.
pub(super) fn advance(sequence: i32, by: u32) -> i32 {
    let sum = (i64::from(sequence) + i64::from(by)).rem_euclid(MODULUS);
    i32::try_from(sum).unwrap_or(0)
}

/// The sequence after `sequence`.
pub(super) fn next(sequence: i32) -> i32 {
    advance(sequence, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_after_the_greatest_is_zero() {
        assert_eq!(next(0), 1);
        assert_eq!(next(i32::MAX), 0);
        assert_eq!(advance(i32::MAX - 1, 3), 1);
        assert_eq!(advance(5, 0), 5);
        assert_eq!(advance(0, u32::MAX), i32::MAX);
    }
}
