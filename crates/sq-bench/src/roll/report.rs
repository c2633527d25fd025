//! What a run comes to.

use std::io::Write as _;
use std::path::Path;

use anyhow::Result;

use super::Mode;
use super::drive::Seen;
use super::records::Roll;
use super::windows::{Comparison, Windows, compare};
use crate::stats::{Summary, float, median};
use crate::table::{Row, Table, Target, Unit};

/// One mode with one delay.
pub(super) struct Series {
    pub(super) mode: Mode,
    pub(super) delay_ms: u64,
    pub(super) seen: Seen,
    pub(super) rolls: Vec<Roll>,
}

impl Series {
    fn name(&self) -> String {
        format!("{}, {} ms", self.mode.name(), self.delay_ms)
    }

    pub(super) fn ends(&self) -> Vec<usize> {
        let ends = self
            .rolls
            .iter()
            .filter_map(|roll| usize::try_from(roll.end).ok());
        ends.filter(|end| *end < self.seen.acknowledged.len())
            .collect()
    }

    fn latencies(&self) -> Vec<f64> {
        self.seen
            .acknowledged
            .iter()
            .map(|(_, latency)| *latency)
            .collect()
    }

    /// What rolls had, of those whose records were measured.
    fn sum(&self, get: fn(&Roll) -> u64) -> u64 {
        self.rolls.iter().map(get).sum()
    }

    fn waited(&self) -> usize {
        self.rolls.iter().filter(|roll| roll.waited_us > 0).count()
    }
}

/// Prints the table and the verdicts.
pub(super) fn print(all: &[Series], load: &str, svg: &Path) -> Result<()> {
    let mut out = std::io::stdout();
    let head = "| mode, commit delay | records | rolls | ack, us: p50 / p99 / p99.9 / max \
        | in 50 after a switch | tail gap, us | in 50 after a switch | errors | rolls that made \
        appends wait | overrun bytes | prepared in, ms |";
    writeln!(out, "rolls, as clients see them\n\n{head}")?;
    writeln!(out, "|{}", "---|".repeat(11))?;
    let mut table = Table::new("what that is against windows of 50 away from rolls");
    for series in all {
        let windows = Windows::new(&series.ends(), series.seen.acknowledged.len());
        let latencies = series.latencies();
        let acks = compare(&latencies, &windows, 1);
        let tail = compare(&series.seen.tail_gaps, &windows, 2);
        let prepared = series.rolls.iter().map(|roll| float(roll.prepare_us) / 1e3);
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} |",
            series.name(),
            series.seen.acknowledged.len(),
            series.rolls.len(),
            cell(Summary::of(latencies.iter().copied())),
            cell(acks.after),
            cell(Summary::of(series.seen.tail_gaps.iter().copied())),
            cell(tail.after),
            series.seen.errors,
            series.waited(),
            series.sum(|roll| roll.overrun_bytes),
            median(prepared),
        )?;
        judge(&mut table, series, "acknowledgements", acks);
        judge(&mut table, series, "tail gaps", tail);
        judge_crossing(&mut table, series, &latencies);
        judge_losses(&mut table, series);
    }
    writeln!(out)?;
    crate::run::print(&table, load)?;
    writeln!(out, "the figure is in {}", svg.display())?;
    Ok(())
}

fn cell(of: Summary) -> String {
    format!(
        "{:.0} / {:.0} / {:.0} / {:.0}",
        of.p50, of.p99, of.p999, of.max
    )
}

/// What only one that anticipates has to reach.
fn judged(series: &Series, row: Row, ratio: f64, bound: f64) -> Row {
    match series.mode {
        Mode::Anticipatory => row.judge(ratio, Unit::Times, Target::AtMost(bound)),
        Mode::Reactive => row.ratio(ratio),
    }
}

fn judge(table: &mut Table, series: &Series, what: &str, seen: Comparison) {
    let us = Unit::Microseconds;
    let rows = [
        ("p50", seen.after.p50, seen.away.p50, 1.2),
        ("p99", seen.after.p99, seen.away.p99, 1.2),
        (
            "p99.9, beside: 95 of 100 draws",
            seen.after.p999,
            seen.away_p999_high,
            1.0,
        ),
    ];
    for (name, after, away, bound) in rows {
        let row = Row::new(format!("{}: {what} after a switch, {name}", series.name()));
        let row = row.figure(after, us).beside(away, us);
        table.push(judged(series, row, after / away, bound));
    }
}

/// The record that crosses, against the first after 5 ms of idleness, which costs more without any roll.
fn judge_crossing(table: &mut Table, series: &Series, latencies: &[f64]) {
    let ends = series.ends();
    let crossing = Summary::of(ends.iter().filter_map(|end| latencies.get(*end).copied()));
    let idle = Summary::of(series.seen.after_idleness.iter().copied());
    let us = Unit::Microseconds;
    let row = Row::new(format!(
        "{}: the record that crosses, p50, beside: after 5 ms idle",
        series.name()
    ))
    .figure(crossing.p50, us)
    .beside(idle.p50, us)
    .note(format!("max {:.0} us", crossing.max));
    table.push(judged(series, row, crossing.p50 / idle.p50, 1.2));
}

/// What there must be none of.
fn judge_losses(table: &mut Table, series: &Series) {
    if series.mode == Mode::Reactive {
        return;
    }
    let losses = [
        ("rolls that made an append wait", series.waited() as u64),
        ("errors", series.seen.errors),
    ];
    for (what, count) in losses {
        let (count, unit) = (float(count), Unit::Count);
        let row = Row::new(format!("{}: {what}", series.name())).figure(count, unit);
        table.push(row.judge(count, unit, Target::AtMost(0.0)));
    }
}
