//! `sq serve`: the broker.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sq_sim::{OsFileSystem, SystemClock};
use sq_storage::log::{AppendThreads, Executor};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::finish;
use crate::atomic_file;
use crate::broker::{Broker, StartError, Surroundings};
use crate::config::{Config, ConfigError, HostPort, MAX_SYNC_INTERVAL_MS};
use crate::partition::Appends;
use crate::server::Server;

/// The largest settings file that is read, in bytes.
const MAX_CONFIG_BYTES: usize = 1 << 20;

/// What `sq serve` can be told. A flag goes over the file, and the file over the defaults.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Where to listen [default: 127.0.0.1:9092].
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<HostPort>,
    /// What clients are told to connect to [default: where it listens].
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<HostPort>,
    /// Where everything durable is [default: ./sq-data].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How long after it was acknowledged a record may not be durable yet, in milliseconds; 0 syncs
    /// before every acknowledgement [default: 0].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=MAX_SYNC_INTERVAL_MS))]
    sync_interval_ms: Option<u64>,
    /// A file of settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Takes settings that make a broker worse on purpose, for tests and benchmarks.
    #[arg(long)]
    unsafe_test_settings: bool,
}

/// Why the broker does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The settings file can't be read.
    #[error("{path}: {error}")]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The settings are not right.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address can't be listened on.
    #[error("can't listen on {address}: {error}")]
    Listen {
        /// The address.
        address: HostPort,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The system gives no entropy.
    #[error("the system gives no random bytes: {0}")]
    Entropy(String),
    /// The threads that write to the disk can't be started.
    #[error("can't start threads: {0}")]
    Threads(#[source] io::Error),
    /// Signals can't be waited for.
    #[error("can't wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// The data can't be used.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// How many appends may be writing or syncing at a time. Each is to a partition of its own, and the
/// file system lets syncs that come together share one commit.
const APPEND_THREADS: usize = 8;

impl ServeArgs {
    /// Serves until SIGTERM or Ctrl-C; then answers what is under way, syncs, and is done.
    pub async fn run(self) -> ExitCode {
        let result = self.serve().await;
        finish(&[], result)
    }

    async fn serve(self) -> Result<(), ServeError> {
        let config = self.settings(&OsFileSystem::blocking_pool()).await?;
        let disk = |disk: OsFileSystem| {
            Arc::new(if config.direct_writes {
                disk.with_direct_writes()
            } else {
                disk
            })
        };
        allow_open_files();
        // Before anything is opened: a signal during a long recovery ends it in order, too.
        let stop = stop_signal().map_err(ServeError::Signals)?;
        let listen = |error| ServeError::Listen {
            address: config.listen.clone(),
            error,
        };
        let server = Server::bind(&config.listen.to_string())
            .await
            .map_err(listen)?;
        let advertised = config.advertised(server.address().port());
        let rng = StdRng::try_from_rng(&mut SysRng)
            .map_err(|error| ServeError::Entropy(error.to_string()))?;
        let threads = AppendThreads::start(APPEND_THREADS).map_err(ServeError::Threads)?;
        let surroundings = Surroundings {
            // A successor, too, is prepared past the cache that its appends go past.
            fs: disk(OsFileSystem::blocking_pool()),
            appends: Appends {
                fs: disk(OsFileSystem::inline()),
                executor: Executor::Threads(threads),
            },
            clock: Arc::new(SystemClock),
            rng,
        };
        let data_dir = config.data_dir.clone();
        let broker = Broker::start(config, advertised.clone(), surroundings).await?;
        greet(&server, &advertised, &data_dir);
        server.run(broker, stop).await;
        tracing::info!("stopped");
        Ok(())
    }

    async fn settings(self, fs: &OsFileSystem) -> Result<Config, ServeError> {
        let mut config = match &self.config {
            None => Config::default(),
            Some(path) => Config::from_toml(&read_text(fs, path).await?)?,
        };
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        if let Some(data_dir) = self.data_dir {
            config.data_dir = data_dir;
        }
        if let Some(interval_ms) = self.sync_interval_ms {
            config.sync_every_ms(interval_ms);
        }
        config.advertise = self.advertise.or(config.advertise);
        config.validate()?;
        if !self.unsafe_test_settings {
            config.refuse_test_settings()?;
        }
        Ok(config)
    }
}

/// Raises the number of files that may be open to what the system allows at most. Each partition and
/// each connection takes one or two, and many systems give a process 1,024 to begin with.
fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            tracing::info!(from = ?limit.current, to = ?limit.maximum, "the limit of open files is raised");
        }
        Err(error) => {
            tracing::warn!(%error, limit = ?limit.current, "the limit of open files was not raised");
        }
    }
}

async fn read_text(fs: &OsFileSystem, path: &Path) -> Result<String, ServeError> {
    let failed = |error| ServeError::ConfigFile {
        path: path.to_owned(),
        error,
    };
    let bytes = atomic_file::read_whole(fs, path, MAX_CONFIG_BYTES)
        .await
        .map_err(failed)?
        .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    String::from_utf8(bytes.into())
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// Turns true at the first SIGTERM or SIGINT. A second one ends the process at once.
fn stop_signal() -> io::Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        for patience_is_over in [false, true] {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if patience_is_over {
                tracing::warn!("stopped at once at the second signal");
                std::process::exit(1);
            }
            tracing::info!("stopping");
            stop.send_replace(true);
        }
    });
    Ok(stopped)
}

fn greet(server: &Server, advertised: &HostPort, data_dir: &Path) {
    let text = format!(
        "sq listens on {} and tells clients {advertised}\n\
         data is in {}\n\
         try it: echo hello | kcat -P -b {advertised} -t demo; kcat -C -e -b {advertised} -t demo\n",
        server.address(),
        data_dir.display(),
    );
    // Whoever closed standard output wants no greeting.
    let _ = io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| io::stdout().flush());
}
