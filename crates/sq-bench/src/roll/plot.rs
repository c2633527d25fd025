//! Latency over time, with the rolls marked.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;

use super::Mode;
use super::report::Series;

/// How many rolls are shown.
const ROLLS: usize = 12;

/// The delay of commits that is shown, in milliseconds, if it was measured.
const SHOWN_DELAY_MS: u64 = 50;

/// Draws the reactive broker above the one that anticipates, at one scale.
pub(super) fn draw(path: &Path, all: &[Series]) -> Result<()> {
    let delays: Vec<u64> = all.iter().map(|series| series.delay_ms).collect();
    let shown = delays
        .iter()
        .find(|delay| **delay == SHOWN_DELAY_MS)
        .or(delays.last());
    let Some(&delay) = shown else { return Ok(()) };
    let of = |mode| all.iter().find(|s| s.mode == mode && s.delay_ms == delay);
    let both = [of(Mode::Reactive), of(Mode::Anticipatory)];
    let panels: Vec<Panel> = both.into_iter().flatten().map(Panel::of).collect();
    let highest = panels
        .iter()
        .flat_map(|p| &p.points)
        .map(|(_, ms)| *ms)
        .fold(1.0, f64::max);
    let root = SVGBackend::new(path, (960, 540)).into_drawing_area();
    root.fill(&WHITE).map_err(|e| anyhow!("{e}"))?;
    for (area, panel) in root
        .split_evenly((panels.len().max(1), 1))
        .iter()
        .zip(&panels)
    {
        panel.draw(area, highest).map_err(|e| anyhow!("{e}"))?;
    }
    root.present().with_context(|| path.display().to_string())
}

struct Panel {
    title: String,
    /// Seconds, and milliseconds of latency.
    points: Vec<(f64, f64)>,
    /// When the first record of a segment was sent, in seconds.
    rolls: Vec<f64>,
}

impl Panel {
    /// From the middle of the series.
    fn of(series: &Series) -> Self {
        let ends = series.ends();
        let first = ends.len().saturating_sub(ROLLS) / 2;
        let shown = ends.get(first..).unwrap_or_default();
        let shown = shown.get(..ROLLS.min(shown.len())).unwrap_or_default();
        let seen = &series.seen.acknowledged;
        let (from, to) = match shown {
            [from, .., to] => (*from, *to),
            _ => (0, seen.len()),
        };
        let margin = (to - from) / (2 * ROLLS);
        let range = from.saturating_sub(margin)..(to + margin).min(seen.len());
        let begun = seen.get(range.start).map_or(0.0, |(at, _)| *at);
        let seconds = |at: f64| (at - begun) / 1e6;
        let points = seen.get(range).unwrap_or_default().iter();
        let at = |end: &usize| seen.get(*end).map(|(at, _)| seconds(*at));
        Self {
            title: format!(
                "{}: latency of acknowledgements, ms (commits {} ms late; a line at each roll)",
                series.mode.name(),
                series.delay_ms
            ),
            points: points
                .map(|(at, latency)| (seconds(*at), latency / 1e3))
                .collect(),
            rolls: shown.iter().filter_map(at).collect(),
        }
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
        highest: f64,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let last = self.points.last().map_or(1.0, |(at, _)| *at);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(50)
            .build_cartesian_2d(0.0..last, (0.05..highest * 1.2).log_scale())?;
        let style = |ms: &f64| {
            if *ms < 1.0 {
                format!("{ms:.1}")
            } else {
                format!("{ms:.0}")
            }
        };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("s")
            .y_label_formatter(&style)
            .draw()?;
        for at in &self.rolls {
            let line = [(*at, 0.05), (*at, highest * 1.2)];
            chart.draw_series(LineSeries::new(line, RED.mix(0.4)))?;
        }
        chart.draw_series(LineSeries::new(self.points.iter().copied(), BLUE))?;
        Ok(())
    }
}
