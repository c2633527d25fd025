//! A broker as a process of its own.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kafka_protocol::messages::ApiVersionsRequest;

use crate::machine::Pid;
use crate::run::Run;
use crate::time::now;
use crate::wire::Connection;

/// Which broker is measured, and where its data goes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The broker to run [default: this tree's, built for release].
    #[arg(long, value_name = "PATH")]
    sq: Option<PathBuf>,
    /// Where scratch data goes [default: the build's directory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Args {
    /// The broker, and a run of so many steps.
    pub(crate) fn begin(&self, steps: u64) -> Result<(PathBuf, Run)> {
        let sq = find_sq(self.sq.clone())?;
        Ok((sq, Run::new(self.dir.clone(), steps)?))
    }
}

/// A running broker; killed when dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    process: Child,
    address: SocketAddr,
    /// From before the process was started to the first answer.
    pub(crate) start_up: Duration,
}

impl Broker {
    /// Starts `sq` on a data directory, and waits until it answers `ApiVersions`.
    pub(crate) fn start(sq: &Path, data_dir: &Path) -> Result<Self> {
        let mut command = Command::new(sq);
        command.arg("serve").env("SQ_LOG", "warn");
        Self::start_as(command, data_dir)
    }

    /// Starts one with settings, and what it logs about its rolls in a file.
    pub(crate) fn start_rolling(
        sq: &Path,
        data_dir: &Path,
        config: &Path,
        log: File,
    ) -> Result<Self> {
        let mut command = Command::new(sq);
        command.env("SQ_LOG", "warn,sq_roll=info").stderr(log);
        command.args(["serve", "--unsafe-test-settings", "--config"]);
        command.arg(config);
        Self::start_as(command, data_dir)
    }

    fn start_as(mut command: Command, data_dir: &Path) -> Result<Self> {
        let begun = now();
        let mut process = command
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} can't be started", command.get_program().display()))?;
        let address = greeting(&mut process);
        let mut broker = Self {
            process,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            start_up: Duration::ZERO,
        };
        // From here on an error ends the process.
        broker.address = address?;
        let versions = Connection::open(broker.address)?.call(&ApiVersionsRequest::default(), 0)?;
        broker.start_up = now().duration_since(begun);
        ensure!(versions.error_code == 0, "no versions: {versions:?}");
        Ok(broker)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.process.id())
    }

    /// Ends it as a crash would: `kill -9`.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads where the broker listens from what it says when it does.
fn greeting(process: &mut Child) -> Result<SocketAddr> {
    let stdout = process.stdout.take().context("no output to read")?;
    let mut line = String::new();
    BufReader::new(stdout.take(1 << 10)).read_line(&mut line)?;
    let address = line
        .strip_prefix("sq listens on ")
        .and_then(|rest| rest.split(' ').next())
        .with_context(|| format!("sq did not start: {line:?}"))?;
    Ok(address.parse()?)
}

/// The `sq` to measure: the one that was named, or this tree's, built for release.
fn find_sq(named: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path);
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "-p", "sq-broker"])
        .arg("--manifest-path")
        .arg(manifest)
        .status()
        .context("cargo can't be started; name the broker with --sq")?;
    ensure!(built.success(), "sq can't be built; name one with --sq");
    let path = target_dir()?.join("release").join("sq");
    Ok(path)
}

/// Where this program's own build put it: a place on a real disk, for scratch data too.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe.ancestors().nth(2).context("no target directory")?;
    Ok(dir.to_owned())
}
