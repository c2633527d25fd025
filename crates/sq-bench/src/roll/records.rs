//! What a broker's own records of its rolls say.

use anyhow::{Context as _, Result};

/// One roll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Roll {
    /// The first offset of the new segment.
    pub(super) end: u64,
    /// How far the old segment passed its cap.
    pub(super) overrun_bytes: u64,
    /// How long appends waited for the new one.
    pub(super) waited_us: u64,
    /// From the request to its being ready.
    pub(super) prepare_us: u64,
}

/// Takes the records out of what a broker logged.
pub(super) fn parse(log: &str) -> Result<Vec<Roll>> {
    let lines = log.lines().filter(|line| line.contains(": rolled "));
    let mut rolls = lines.map(roll).collect::<Result<Vec<_>>>()?;
    rolls.sort_by_key(|roll| roll.end);
    Ok(rolls)
}

fn roll(line: &str) -> Result<Roll> {
    let field = |name: &str| -> Result<u64> {
        let value = line
            .split(' ')
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let value = value.with_context(|| format!("no {name} in {line:?}"))?;
        value.parse().with_context(|| format!("{name} in {line:?}"))
    };
    Ok(Roll {
        end: field("end")?,
        overrun_bytes: field("overrun_bytes")?,
        waited_us: field("waited_us")?,
        prepare_us: field("prepare_us")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roll_is_read_from_what_is_logged_about_it() {
        let log = "2026-01-01T00:00:00.000000Z  WARN sq_broker: slow\n\
            2026-01-01T00:00:00.000001Z  INFO sq_roll::rolling::record: rolled topic=\"rolls\" \
            partition=0 from=0a to=0b end=907 trigger=Size prepare_us=5100 overrun_bytes=12 \
            waited_us=3 producer_gap_us=900 tail_gap_us=901 usual_gap_us=1000\n";
        let wanted = Roll {
            end: 907,
            overrun_bytes: 12,
            waited_us: 3,
            prepare_us: 5100,
        };
        assert_eq!(parse(log).unwrap(), [wanted]);
        assert!(parse("x: rolled end=1\n").is_err());
    }
}
