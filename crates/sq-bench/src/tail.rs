//! A consumer in a process of its own, so that its processor time can be told from the producer's.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::librdkafka;
use crate::machine::Pid;

/// What the consumer is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    bootstrap: String,
    topic: String,
    end: u64,
}

/// Reads from the first offset to `end`, and says what processor time that took, in microseconds.
pub(crate) fn run(args: &Args) -> Result<()> {
    librdkafka::consume(&args.bootstrap, &args.topic, 0, args.end, &[])?;
    let cpu = Pid::this().cpu_time()?;
    writeln!(std::io::stdout(), "{}", cpu.as_micros())?;
    Ok(())
}

/// The consumer, from outside.
#[derive(Debug)]
pub(crate) struct Tail(Child);

impl Tail {
    pub(crate) fn start(bootstrap: &str, topic: &str, end: u64) -> Result<Self> {
        let process = Command::new(std::env::current_exe()?)
            .args(["tail", bootstrap, topic, &end.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self(process))
    }

    /// Waits until it has read all, and gives the processor time that it took.
    pub(crate) fn finish(mut self) -> Result<Duration> {
        let stdout = self.0.stdout.take().context("no output to read")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let status = self.0.wait()?;
        ensure!(status.success(), "the consumer failed");
        Ok(Duration::from_micros(line.trim().parse()?))
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
