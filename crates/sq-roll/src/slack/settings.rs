//! What a user can say about the slack.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// Where the soft mark is: `auto`, or a fraction of the cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SoftMark {
    /// As near to the cap as the write rate and the time that preparations take allow.
    Auto,
    /// At this fraction of the cap, above 0 and up to 1.
    Fraction(f64),
}

impl SoftMark {
    /// Where the soft mark is as long as nothing was measured.
    pub const FALLBACK: f64 = 0.9;
}

impl FromStr for SoftMark {
    type Err = InvalidSoftMark;

    fn from_str(text: &str) -> Result<Self, InvalidSoftMark> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match text.parse() {
            Ok(fraction) if fraction > 0.0 && fraction <= 1.0 => Ok(Self::Fraction(fraction)),
            _ => Err(InvalidSoftMark {
                text: text.to_owned(),
            }),
        }
    }
}

/// A soft mark that is neither `auto` nor a fraction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSoftMark {
    text: String,
}

impl std::fmt::Display for InvalidSoftMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a soft mark is \"auto\" or a fraction above 0 and up to 1, not {:?}",
            self.text
        )
    }
}

impl std::error::Error for InvalidSoftMark {}

/// How the slack is sized. Shares outside 0 to 1 count as the nearer of the two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlackSettings {
    /// Where the soft mark is.
    pub soft_mark: SoftMark,
    /// Which of the past preparations is counted on, as a share of them.
    pub percentile: f64,
    /// How often over the slack covers a preparation of that length. At least 1.
    pub safety: f64,
    /// The least slack, as a share of the cap.
    pub least: f64,
    /// The most slack, as a share of the cap.
    pub most: f64,
    /// By how much a segment's cap can be lower than the configured one, as a share of it.
    pub jitter: f64,
}

impl Default for SlackSettings {
    fn default() -> Self {
        Self {
            soft_mark: SoftMark::Auto,
            percentile: 0.999,
            safety: 2.0,
            least: 1.0 / 64.0,
            most: 1.0,
            jitter: 0.125,
        }
    }
}

impl SlackSettings {
    pub(super) fn band(&self) -> RangeInclusive<f64> {
        let least = self.least.clamp(0.0, 1.0);
        least..=self.most.clamp(least, 1.0)
    }

    pub(super) fn safety(&self) -> f64 {
        self.safety.clamp(1.0, 1e6)
    }

    pub(super) fn jitter(&self) -> f64 {
        self.jitter.clamp(0.0, 1.0)
    }
}
