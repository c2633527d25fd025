//! Where the marks are.

use std::time::Duration;

use sq_roll::{Latencies, Limits, SegmentId, Slack, SlackSettings, SoftMark};

const MIB: u64 = 1 << 20;
const CAP: u64 = 64 * MIB;
const EXACT: SlackSettings = SlackSettings {
    soft_mark: SoftMark::Auto,
    percentile: 0.999,
    safety: 2.0,
    least: 1.0 / 64.0,
    most: 1.0,
    jitter: 0.0,
};

fn slack(settings: SlackSettings) -> Slack {
    let configured = Limits::bytes(CAP).with_age(Duration::from_secs(100));
    Slack::new(settings, configured, 7, SegmentId(1))
}

/// Writes for a second, in frames of 16 KiB.
fn write(slack: &mut Slack, from: Duration, bytes_a_second: u64) -> Duration {
    let frames = bytes_a_second >> 14;
    let step = Duration::from_secs(1) / u32::try_from(frames).unwrap();
    let mut now = from;
    for _ in 0..frames {
        slack.appended(now, 16 << 10);
        now += step;
    }
    now
}

fn latencies(each: Duration, count: usize) -> Latencies {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        latencies.observe(each);
    }
    latencies
}

#[test]
fn without_history_the_mark_is_at_nine_tenths() {
    let mut slack = slack(EXACT);
    write(&mut slack, Duration::ZERO, MIB);
    let limits = slack.limits(&Latencies::default());
    assert_eq!(limits.soft_bytes, CAP - CAP / 10);
    assert_eq!(limits.soft_age, Duration::from_secs(90));
    assert_eq!(limits.hard_bytes(), CAP + CAP / 10);
}

#[test]
fn a_fraction_is_a_fraction_whatever_was_measured() {
    let mut slack = slack(SlackSettings {
        soft_mark: SoftMark::Fraction(0.75),
        ..EXACT
    });
    write(&mut slack, Duration::ZERO, 32 * MIB);
    let limits = slack.limits(&latencies(Duration::from_secs(1), 20));
    assert_eq!(limits.soft_bytes, CAP / 4 * 3);
    assert_eq!(limits.soft_age, Duration::from_secs(75));
}

#[test]
fn the_slack_covers_a_preparation_at_the_rate_with_some_to_spare() {
    let mut slack = slack(EXACT);
    write(&mut slack, Duration::ZERO, 32 * MIB);
    let left = |slack: &Slack, latency| {
        CAP - slack
            .limits(&latencies(Duration::from_millis(latency), 20))
            .soft_bytes
    };
    // 32 MiB/s for 100 ms, twice over.
    assert!(
        (6 * MIB..7 * MIB).contains(&left(&slack, 100)),
        "{}",
        left(&slack, 100)
    );
    assert!((12 * MIB..14 * MIB).contains(&left(&slack, 200)));
    assert_eq!(left(&slack, 1), MIB, "never less than the band");
    assert_eq!(left(&slack, 60_000), CAP, "nor more than the segment");
    // A burst is remembered for the next segments, and fades.
    slack.switched(SegmentId(2));
    assert!(left(&slack, 100) > 4 * MIB);
    for id in 3..12 {
        let now = write(&mut slack, Duration::from_secs(100 * id), MIB);
        assert!(now > Duration::ZERO);
        slack.switched(SegmentId(id));
    }
    assert_eq!(left(&slack, 100), MIB);
}

#[test]
fn a_few_observations_raise_the_slack_and_do_not_lower_it() {
    let mut slack = slack(EXACT);
    write(&mut slack, Duration::ZERO, 32 * MIB);
    let few = slack.limits(&latencies(Duration::from_millis(1), 3));
    assert_eq!(few.soft_bytes, CAP - CAP / 10);
    let slow = slack.limits(&latencies(Duration::from_millis(500), 3));
    assert!(slow.soft_bytes < CAP / 2 + MIB);
}

#[test]
fn what_else_takes_long_raises_the_slack_until_enough_is_observed_and_never_lowers_it() {
    // Commits that took a millisecond, one for each topic, were taken for observed preparations: with
    // eight of them a node believed that a file takes no longer to make than that.
    let mut slack = slack(EXACT);
    write(&mut slack, Duration::ZERO, 32 * MIB);
    let left = |observed: usize, hint: Duration| {
        let mut latencies = latencies(Duration::from_millis(1), observed);
        for _ in 0..20 {
            latencies.hint(hint);
        }
        CAP - slack.limits(&latencies).soft_bytes
    };
    for observed in [0, 3] {
        assert_eq!(left(observed, Duration::from_millis(1)), CAP / 10);
        assert!(left(observed, Duration::from_millis(500)) > CAP / 2 - MIB);
    }
    let known = left(20, Duration::from_millis(1));
    assert_eq!(left(20, Duration::from_millis(500)), known);
    assert!(known < CAP / 10);
}

#[test]
fn a_long_tail_is_expected_to_be_longer() {
    let mut slack = slack(EXACT);
    write(&mut slack, Duration::ZERO, 8 * MIB);
    let even = latencies(Duration::from_millis(200), 100);
    let mut tailed = latencies(Duration::from_millis(20), 99);
    tailed.observe(Duration::from_millis(200));
    let left = |latencies| CAP - slack.limits(latencies).soft_bytes;
    assert!(left(&tailed) > left(&even) * 3 / 2);
}

#[test]
fn the_largest_frame_fits_behind_the_mark() {
    let mut slack = slack(EXACT);
    slack.appended(Duration::ZERO, 8 * MIB);
    let limits = slack.limits(&latencies(Duration::from_millis(1), 20));
    assert!(limits.soft_bytes <= CAP - 8 * MIB);
}

#[test]
fn age_gets_the_same_treatment() {
    let slack = slack(EXACT);
    let limits = slack.limits(&latencies(Duration::from_secs(5), 20));
    assert_eq!(limits.soft_age, Duration::from_secs(90));
    let limits = slack.limits(&latencies(Duration::from_millis(1), 20));
    let band = Duration::from_secs(100) / 64;
    assert_eq!(
        limits.soft_age,
        Duration::from_secs(100).saturating_sub(band)
    );
    let ageless = Slack::new(EXACT, Limits::bytes(CAP), 7, SegmentId(1));
    assert_eq!(
        ageless.limits(&Latencies::default()).soft_age,
        Duration::MAX
    );
}

#[test]
fn jitter_lowers_a_cap_by_its_share_at_most_and_is_the_same_each_time() {
    let settings = SlackSettings {
        jitter: 0.2,
        ..EXACT
    };
    let configured = Limits::bytes(CAP).with_age(Duration::from_secs(100));
    let none = Latencies::default();
    let cap = |id| {
        let slack = Slack::new(settings, configured, 7, SegmentId(id));
        slack.limits(&none)
    };
    let (mut least, mut most) = (u64::MAX, 0);
    for id in 0..1_000 {
        let limits = cap(id);
        assert_eq!(limits, cap(id));
        assert!(limits.cap_bytes > CAP / 5 * 4 && limits.cap_bytes <= CAP);
        assert_eq!(limits.hard_bytes(), configured.hard_bytes());
        least = least.min(limits.cap_bytes);
        most = most.max(limits.cap_bytes);
    }
    assert!(most - least > CAP / 20 * 3, "and spreads them");
}

#[test]
fn a_soft_mark_is_auto_or_a_fraction() {
    assert_eq!("auto".parse(), Ok(SoftMark::Auto));
    assert_eq!("0.85".parse(), Ok(SoftMark::Fraction(0.85)));
    assert_eq!("1".parse(), Ok(SoftMark::Fraction(1.0)));
    for wrong in ["", "Auto", "0", "-0.5", "1.01", "NaN", "inf", "90%"] {
        let error = wrong.parse::<SoftMark>().unwrap_err().to_string();
        assert!(error.contains("auto") && error.contains(wrong), "{error}");
    }
}

#[test]
fn percentiles_are_of_the_last_thousand_or_so() {
    let mut latencies = Latencies::default();
    assert_eq!(latencies.percentile(0.5), None);
    for ms in (1..=100).rev() {
        latencies.observe(Duration::from_millis(ms));
    }
    assert_eq!(latencies.percentile(0.5), Some(Duration::from_millis(50)));
    assert_eq!(latencies.percentile(0.99), Some(Duration::from_millis(99)));
    assert_eq!(latencies.percentile(1.0), Some(Duration::from_millis(100)));
    assert_eq!(latencies.percentile(0.0), Some(Duration::from_millis(1)));
    for _ in 0..1_024 {
        latencies.observe(Duration::from_millis(7));
    }
    assert_eq!(latencies.percentile(1.0), Some(Duration::from_millis(7)));
}
