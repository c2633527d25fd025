//! The table that a run prints.

use std::fmt;

use anyhow::{Result, ensure};

/// What a figure is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// How numbers of a row are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Times the floor, or times whatever the row names.
    Times,
    /// A second.
    PerSecond,
    /// 10^6 bytes a second.
    MegabytesPerSecond,
    Milliseconds,
    Microseconds,
    Mebibytes,
    /// How many.
    Count,
}

/// One line: a figure, what it is measured against, and what it should be.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    job: String,
    beside: String,
    figure: String,
    judged: Option<(f64, Unit, Target)>,
    value: Option<(f64, Unit)>,
    plain: Option<(f64, Unit)>,
    note: String,
}

impl Row {
    pub(crate) fn new(job: impl Into<String>) -> Self {
        Self {
            job: job.into(),
            beside: String::new(),
            figure: String::new(),
            judged: None,
            value: None,
            plain: None,
            note: String::new(),
        }
    }

    /// What was measured.
    #[must_use]
    pub(crate) fn figure(mut self, value: f64, unit: Unit) -> Self {
        self.figure = write(value, unit);
        self.plain = Some((value, unit));
        self
    }

    /// What was measured beside it in the same rounds: the floor, most often.
    #[must_use]
    pub(crate) fn beside(mut self, value: f64, unit: Unit) -> Self {
        self.beside = write(value, unit);
        self
    }

    /// What the target speaks of, without one.
    #[must_use]
    pub(crate) fn ratio(mut self, value: f64) -> Self {
        self.value = Some((value, Unit::Times));
        self
    }

    /// What the target speaks of: a ratio, or the figure itself.
    #[must_use]
    pub(crate) fn judge(mut self, value: f64, unit: Unit, target: Target) -> Self {
        self.value = Some((value, unit));
        self.judged = Some((value, unit, target));
        self
    }

    /// What else there is to say.
    #[must_use]
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn cells(&self) -> [String; 7] {
        let value = match self.value {
            Some((value, Unit::Times)) => write(value, Unit::Times),
            _ => String::new(),
        };
        let (target, verdict) = match self.judged {
            None => (String::new(), String::new()),
            Some((value, unit, target)) => (target.text(unit), target.verdict(value)),
        };
        let (job, note) = (self.job.clone(), self.note.clone());
        let (figure, beside) = (self.figure.clone(), self.beside.clone());
        [job, beside, figure, value, target, verdict, note]
    }
}

impl Target {
    fn text(self, unit: Unit) -> String {
        match self {
            Self::AtLeast(bound) => format!(">= {}", write(bound, unit)),
            Self::AtMost(bound) => format!("<= {}", write(bound, unit)),
        }
    }

    fn verdict(self, value: f64) -> String {
        let (reached, gap) = match self {
            Self::AtLeast(bound) => (value >= bound, bound / value - 1.0),
            Self::AtMost(bound) => (value <= bound, value / bound - 1.0),
        };
        if reached {
            "reached".to_owned()
        } else if gap.is_finite() {
            format!("missed by {:.0} %", gap * 100.0)
        } else if value.is_finite() {
            // There is no share of nothing.
            "missed".to_owned()
        } else {
            "not measured".to_owned()
        }
    }
}

/// Rows under one heading.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }
}

impl Table {
    /// The same without a word about what should be reached.
    #[must_use]
    pub(crate) fn without_verdicts(mut self) -> Self {
        for row in &mut self.rows {
            row.judged = None;
        }
        self
    }

    /// Checks that each figure is a number that something can be.
    pub(crate) fn check_plausible(&self) -> Result<()> {
        ensure!(!self.rows.is_empty(), "nothing was measured");
        for row in &self.rows {
            let numbers = row.value.into_iter().chain(row.plain);
            for (value, _) in numbers {
                let can_be = value.is_finite() && value > 0.0;
                ensure!(can_be, "{}: {value} can't be", row.job);
            }
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEAD: [&str; 7] = [
            "job", "beside", "figure", "ratio", "target", "verdict", "note",
        ];
        let head = HEAD.map(str::to_owned);
        let lines: Vec<_> = std::iter::once(head)
            .chain(self.rows.iter().map(Row::cells))
            .collect();
        let mut widths = [0; 7];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        writeln!(f, "{}\n", self.title)?;
        for (at, line) in lines.iter().enumerate() {
            for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
                // Numbers are read from the right.
                if (1..=3).contains(&column) {
                    write!(f, "| {cell:>width$} ")?;
                } else {
                    write!(f, "| {cell:<width$} ")?;
                }
            }
            writeln!(f, "|")?;
            if at == 0 {
                for width in widths {
                    write!(f, "|{}", "-".repeat(width + 2))?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// A number with its unit.
pub(crate) fn write(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Times => format!("{value:.2}x"),
        Unit::PerSecond => format!("{}/s", grouped(value)),
        Unit::MegabytesPerSecond => format!("{} MB/s", grouped(value)),
        Unit::Milliseconds => format!("{value:.1} ms"),
        Unit::Microseconds => format!("{} us", grouped(value)),
        Unit::Mebibytes => format!("{value:.1} MiB"),
        Unit::Count => grouped(value),
    }
}

/// A whole number with a comma every three digits.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Row, Table, Target, Unit, grouped};

    #[test]
    fn a_row_says_whether_it_reaches_its_target_and_by_how_much_not() {
        let mut table = Table::new("title");
        table.push(
            Row::new("near")
                .figure(170.0, Unit::Microseconds)
                .beside(100.0, Unit::Microseconds)
                .judge(1.7, Unit::Times, Target::AtMost(1.7)),
        );
        table.push(Row::new("far").judge(418_000.0, Unit::PerSecond, Target::AtLeast(836_000.0)));
        table.push(Row::new("unknown").judge(f64::NAN, Unit::Times, Target::AtLeast(1.0)));
        let none = Target::AtMost(0.0);
        table.push(Row::new("none").judge(0.0, Unit::Count, none));
        table.push(Row::new("some").judge(3.0, Unit::Count, none));
        table.push(Row::new("stopped").judge(0.0, Unit::PerSecond, Target::AtLeast(1.0)));
        table.push(Row::new("plain").note("no target"));
        let text = table.to_string();
        let line = |name| text.lines().find(|l| l.contains(name)).unwrap().to_owned();
        assert!(line("near").contains("reached"), "{text}");
        assert!(line("near").contains("1.70x"), "{text}");
        assert!(line("far").contains(">= 836,000/s"), "{text}");
        assert!(line("far").contains("missed by 100 %"), "{text}");
        assert!(line("unknown").contains("not measured"), "{text}");
        // More than none was taken for something that was not measured.
        assert!(line("none").contains("| reached "), "{text}");
        assert!(line("some").contains("| missed "), "{text}");
        assert!(line("stopped").contains("| missed "), "{text}");
        assert!(!line("plain").contains("missed"), "{text}");
        let widths: Vec<_> = text.lines().skip(2).map(|l| l.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!(grouped(0.4), "0");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(grouped(1_000.0), "1,000");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!(grouped(f64::NAN), "0");
    }
}
