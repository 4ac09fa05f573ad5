//! `ferroflow server`: a task of a TensorFlow cluster.

use ferroflow_base::{Result, invalid_argument};
#[cfg(feature = "mpi")]
use ferroflow_remote::{Carrier, Mpi};
use ferroflow_remote::{
    GRACE, MasterOptions, Security, Server, ServerDef, ServerOptions, TlsOptions,
};
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
#[cfg(feature = "mpi")]
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Serves TensorFlow's gRPC services: clients connect with
/// tf.compat.v1.Session("grpc://HOST:PORT").
///
/// The task is given by --cluster, --job-name and --task-index, by --server-def, or by the
/// environment: the variable TF_CONFIG, or those of SLURM's srun and OpenMPI's mpirun. Or it is task 0
/// of job `localhost` at --port. The other tasks of the cluster may be TensorFlow's servers.
///
/// Listens on the loopback address unless --host is set: all clients that can connect can run
/// programs that read and write files.
///
/// SIGTERM and ^C let running steps finish, for at most 30 seconds; a second one does not wait.
#[derive(clap::Args)]
pub struct Args {
    /// The cluster: JOB=HOST:PORT,HOST:PORT;JOB=…
    #[arg(long, value_name = "SPEC", conflicts_with = "port")]
    cluster: Option<String>,
    /// File with a serialized ServerDef: the cluster and the task.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "port"])]
    server_def: Option<PathBuf>,
    /// This server's job.
    #[arg(
        long,
        visible_alias = "job_name",
        default_value = "",
        value_name = "NAME"
    )]
    job_name: String,
    /// This server's number in its job.
    #[arg(long, visible_alias = "task_index", value_name = "N")]
    task_index: Option<u32>,
    /// Port of a cluster of one task; 0 takes a free one.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Under srun or mpirun: the port of the first task on each machine.
    #[arg(long, default_value_t = 8888, value_name = "PORT")]
    first_port: u16,
    /// Under mpirun on several machines: their names, in the order of ranks.
    #[arg(long, value_name = "HOST:PROCESSES,…")]
    hosts: Option<String>,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,
    /// Port of /healthz and /metrics, on the same address.
    #[arg(long, value_name = "PORT")]
    monitor_port: Option<u16>,
    /// Virtual CPU devices [default: 1, or those of the session config].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    cpus: Option<u16>,
    /// File with a serialized ConfigProto: CPU devices, threads, and the task that forms the groups
    /// of collectives.
    #[arg(long, value_name = "FILE")]
    session_config: Option<PathBuf>,
    /// Threads that compute [default: all processors].
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N", value_parser = crate::model::parse_threads)]
    threads: usize,
    /// Close sessions after this many seconds without use; 0 keeps them.
    #[arg(long, default_value_t = 86400, value_name = "SECONDS")]
    session_gc_seconds: u64,
    /// Maximum number of sessions.
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = parse_positive)]
    max_sessions: usize,
    /// Largest accepted message, in bytes [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = parse_positive)]
    max_message_bytes: Option<usize>,
    /// PEM file with the certificate: encrypts connections.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file with the authorities that sign the certificates of the cluster's tasks: encrypts the
    /// connections between them. Every task needs --tls-cert and --tls-key, too.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// File with a secret that the cluster's tasks share: calls without it are refused, except those of
    /// clients on this machine.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Under mpirun: buffers of collectives go by MPI. All tasks of the cluster need this flag.
    #[cfg(feature = "mpi")]
    #[arg(long)]
    mpi: bool,
    /// Write logs as JSON lines.
    #[arg(long)]
    log_json: bool,
    /// Stop as on SIGTERM when the standard input ends, as it does with the process that holds its other end.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

/// Waits until the standard input ends.
async fn end_of_stdin() {
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    // Not a task that blocks: the runtime would wait for it.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(tell);
    });
    let _ = told.await;
}

pub fn parse_positive(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().ok();
    number
        .filter(|n| *n > 0)
        .ok_or_else(|| "expected a number of at least 1".to_string())
}

pub fn run(args: &Args) -> Result<()> {
    // The next message of a hundred megabytes should reuse the memory of the last one.
    ferroflow_tensor::return_freed_memory_after(Duration::from_millis(10));
    start_logging(args.log_json);
    let mut def = task(args)?;
    if let Some(path) = &args.session_config {
        def = def.with_session_config(&read(path)?)?;
    }
    def = def.with_security(security(args)?);
    let address = listen_address(args.host, &def)?;
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    #[cfg(feature = "mpi")]
    let mpi = begin_mpi(args, &mut def)?;
    #[cfg(feature = "mpi")]
    let carrier = mpi.clone().map(|mpi| mpi as Arc<dyn Carrier>);
    #[cfg(not(feature = "mpi"))]
    let carrier = None;
    let server = Server::bind(ServerOptions {
        address,
        monitor: args.monitor_port.map(|p| SocketAddr::new(args.host, p)),
        tls: tls.map(|(certificate, key)| TlsOptions {
            certificate,
            key,
            client_authorities: None,
        }),
        max_message: args.max_message_bytes.unwrap_or(usize::MAX),
        master: MasterOptions {
            server: def.clone(),
            cpus: args.cpus.map_or(0, usize::from),
            threads: args.threads,
            session_idle: match args.session_gc_seconds {
                0 => None,
                s => Some(Duration::from_secs(s)),
            },
            max_sessions: args.max_sessions,
            carrier,
        },
    })?;
    let reach = match address.ip().is_loopback() {
        true => "this machine only",
        false => "every machine that can reach the address",
    };
    let json = args.log_json;
    let stop = stop_signal(server.handle(), json, GRACE);
    let until_stdin_ends = args.until_stdin_ends;
    let stop = async move {
        match until_stdin_ends {
            true => tokio::select! {
                () = stop => {}
                () = end_of_stdin() => {}
            },
            false => stop.await,
        }
    };
    let mut out = std::io::stdout();
    let mut say = |line: String| writeln!(out, "{line}").and_then(|()| out.flush());
    // With its output closed the server still runs.
    let _ = say(format!("TARGET grpc://{}", server.address()));
    if let Some(at) = server.monitor_address() {
        let _ = say(format!("MONITOR http://{at}"));
    }
    let n_tasks: usize = def.cluster.values().map(|job| job.len()).sum();
    if n_tasks > 1 && def.security.authorities.is_none() {
        tell(json, "connections between the tasks are plaintext");
    }
    let task = def.task;
    tell(json, &format!("{task} serves {reach}; stop it with ^C"));
    server.run(stop);
    #[cfg(feature = "mpi")]
    if let Some(mpi) = mpi {
        mpi.end();
    }
    Ok(())
}

/// Joins the other servers of an `mpirun`, the first of which forms the groups of collectives.
#[cfg(feature = "mpi")]
fn begin_mpi(args: &Args, def: &mut ServerDef) -> Result<Option<Arc<Mpi>>> {
    if !args.mpi {
        return Ok(None);
    }
    if def.defaults.collective_leader.is_empty() {
        def.defaults.collective_leader = format!("/job:{}/replica:0/task:0", def.task.job);
    }
    Mpi::begin(&def.task).map(Some)
}

/// Waits for SIGTERM or SIGINT; the next one ends the process. Signals count from the call on, before anything waits, so
/// that a process that is told to stop right after its first line still lets requests finish.
pub fn stop_signal(
    runtime: &Handle,
    json: bool,
    grace: Duration,
) -> impl Future<Output = ()> + Send + 'static {
    let within = runtime.enter();
    let signals = signal(SignalKind::terminate()).and_then(|term| {
        let int = signal(SignalKind::interrupt())?;
        Ok((term, int))
    });
    drop(within);
    async move {
        let Ok((mut term, mut int)) = signals else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tell(
            json,
            &format!(
                "stopping: running steps may finish within {} s; a second signal ends them",
                grace.as_secs()
            ),
        );
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            tell(json, "stopped with running steps");
            std::process::exit(1);
        });
    }
}

/// Prints a line, as text or as a JSON log entry.
pub fn tell(json: bool, line: &str) {
    match json {
        true => tracing::info!("{line}"),
        false => eprintln!("{line}"),
    }
}

pub fn start_logging(json: bool) {
    let asked = std::env::var("FERROFLOW_LOG").ok();
    let filter = asked.and_then(|v| v.parse::<Targets>().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let logs = tracing_subscriber::registry().with(filter);
    match json {
        true => logs.with(lines.json()).init(),
        false => logs.with(lines).init(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| invalid_argument!("cannot read {}: {e}", path.display()))
}

fn security(args: &Args) -> Result<Security> {
    let token = args.token_file.as_deref().map(read).transpose()?;
    let token = token.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string());
    if token.as_ref().is_some_and(String::is_empty) {
        return Err(invalid_argument!("the file of the token is empty"));
    }
    Ok(Security {
        authorities: args.tls_ca.as_deref().map(read).transpose()?,
        token,
    })
}

fn task(args: &Args) -> Result<ServerDef> {
    if let Some(path) = &args.server_def {
        return ServerDef::from_bytes(&read(path)?);
    }
    if let Some(cluster) = &args.cluster {
        return ServerDef::from_flags(cluster, &args.job_name, args.task_index.unwrap_or(0));
    }
    if let Some(port) = args.port {
        if args.task_index.is_some_and(|i| i != 0) {
            return Err(invalid_argument!(
                "--port is of a cluster of one task, number 0; --task-index needs --cluster"
            ));
        }
        let address = SocketAddr::new(args.host, port).to_string();
        let job = match args.job_name.as_str() {
            "" => "localhost",
            name => name,
        };
        return Ok(ServerDef::single(job, &address));
    }
    let described = match std::env::var("TF_CONFIG") {
        Ok(json) => ServerDef::from_tf_config(&json)?,
        Err(_) => None,
    };
    match described {
        Some(def) => {
            // The command line takes precedence over the environment.
            let job = match args.job_name.as_str() {
                "" => &def.task.job,
                job => job,
            };
            ServerDef::checked(
                def.cluster.clone(),
                job,
                args.task_index.unwrap_or(def.task.index),
            )
        }
        None => {
            let job = match args.job_name.as_str() {
                "" => "worker",
                job => job,
            };
            let read = |name: &str| std::env::var(name).ok();
            let hosts = args.hosts.as_deref();
            let found = ServerDef::from_launcher(&read, job, args.first_port, hosts)?;
            found.ok_or_else(|| {
                invalid_argument!(
                    "identify the task by --port PORT, --cluster, or the environment variable TF_CONFIG"
                )
            })
        }
    }
}

/// Returns the address to listen on: the task's port on the requested interface.
fn listen_address(host: IpAddr, def: &ServerDef) -> Result<SocketAddr> {
    if let Some(port) = def.port {
        return Ok(SocketAddr::new(host, port));
    }
    let address = def.address()?;
    let mut found = address
        .to_socket_addrs()
        .map_err(|e| invalid_argument!("the cluster's address '{address}': {e}"))?;
    let port = found.next().map(|a| a.port());
    let port = port.ok_or_else(|| invalid_argument!("cannot resolve the address '{address}'"))?;
    Ok(SocketAddr::new(host, port))
}
