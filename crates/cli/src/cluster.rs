//! `ferroflow cluster`: the tasks of a cluster on this machine.

use crate::out::say;
use crate::server::{start_logging, stop_signal, tell};
use ferroflow_base::{Code, Result, Status, internal, invalid_argument};
use ferroflow_remote::GRACE;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

/// Starts clusters on this machine.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Starts the tasks of a cluster at free ports of the loopback address, until ^C or SIGTERM, or
    /// until one of them ends.
    Up(Up),
}

#[derive(clap::Args)]
pub struct Up {
    /// Number of workers.
    #[arg(value_parser = crate::server::parse_positive)]
    workers: usize,
    /// Number of parameter servers.
    #[arg(long, default_value_t = 0, value_name = "N")]
    ps: usize,
    /// Virtual CPU devices of each task.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    cpus: u16,
    /// Threads of each task that compute [default: all processors].
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N", value_parser = crate::model::parse_threads)]
    threads: usize,
}

/// Most tasks that one command starts.
const MAX_TASKS: usize = 1000;

/// The tasks, which end when this is dropped.
struct Tasks(Vec<(String, Child)>);

impl Tasks {
    /// Tells the tasks to end after their running steps, and waits until they have.
    async fn stop(&mut self) {
        for (_, task) in &mut self.0 {
            drop(task.stdin.take());
        }
        let runs = |task: &mut Child| matches!(task.try_wait(), Ok(None));
        while self.0.iter_mut().any(|(_, task)| runs(task)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for (_, task) in &mut self.0 {
            // One that has ended cannot be killed, and need not be.
            let _ = task.kill();
            let _ = task.wait();
        }
    }
}

pub fn run(command: &Command) -> Result<()> {
    let Command::Up(up) = command;
    start_logging(false);
    let jobs = [("ps", up.ps), ("worker", up.workers)];
    if up.ps.saturating_add(up.workers) > MAX_TASKS {
        return Err(invalid_argument!("at most {MAX_TASKS} tasks"));
    }
    let jobs: Vec<(&str, Vec<String>)> = free_addresses(jobs)?;
    let cluster: Vec<String> = jobs
        .iter()
        .map(|(job, addresses)| format!("{job}={}", addresses.join(",")))
        .collect();
    let cluster = cluster.join(";");
    let mut tasks = Tasks(Vec::new());
    for (job, addresses) in &jobs {
        for index in 0..addresses.len() {
            let name = format!("/job:{job}/task:{index}");
            tasks.0.push((name, start(up, &cluster, job, index)?));
        }
    }
    for (name, task) in &mut tasks.0 {
        await_start(name, task)?;
    }
    for (job, addresses) in &jobs {
        for (index, address) in addresses.iter().enumerate() {
            say!("/job:{job}/task:{index} grpc://{address}");
        }
    }
    say!("CLUSTER {cluster}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| internal!("cannot start: {e}"))?;
    let stop = stop_signal(runtime.handle(), false, GRACE);
    runtime.block_on(async {
        tokio::select! {
            () = stop => {
                tasks.stop().await;
                Ok(())
            }
            ended = first_end(&mut tasks) => Err(ended),
        }
    })
}

/// Waits until a task says that it listens.
fn await_start(name: &str, task: &mut Child) -> Result<()> {
    let mut line = String::new();
    let listens = match &mut task.stdout {
        Some(out) => BufReader::new(out).read_line(&mut line),
        None => Ok(0),
    };
    match listens {
        Ok(n) if n > 0 => Ok(()),
        _ => Err(unavailable(format!("{name} did not start"))),
    }
}

fn unavailable(text: String) -> Status {
    Status::new(Code::Unavailable, text)
}

/// Waits until a task ends.
async fn first_end(tasks: &mut Tasks) -> Status {
    loop {
        for (name, task) in &mut tasks.0 {
            match task.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return unavailable(format!("{name} ended: {status}")),
                Err(e) => return unavailable(format!("{name}: {e}")),
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn free_addresses(jobs: [(&str, usize); 2]) -> Result<Vec<(&str, Vec<String>)>> {
    // All are open at the same time, so that no two are equal.
    let mut listeners = Vec::new();
    let mut found = Vec::new();
    for (job, n) in jobs.into_iter().filter(|(_, n)| *n > 0) {
        let mut addresses = Vec::new();
        for _ in 0..n {
            let failed = |e| unavailable(format!("no free port: {e}"));
            let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?.to_string());
            listeners.push(listener);
        }
        found.push((job, addresses));
    }
    Ok(found)
}

fn start(up: &Up, cluster: &str, job: &str, index: usize) -> Result<Child> {
    let binary = std::env::current_exe().map_err(|e| internal!("no own path: {e}"))?;
    let number = |n: usize| n.to_string();
    let started = Process::new(binary)
        .args(["server", "--cluster", cluster, "--job-name", job])
        .args(["--task-index", &number(index)])
        .args(["--cpus", &up.cpus.to_string()])
        .args(["--threads", &number(up.threads)])
        .arg("--until-stdin-ends")
        // This process passes ^C on itself, and only once.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let task = started.map_err(|e| internal!("cannot start a task: {e}"))?;
    tell(
        false,
        &format!("/job:{job}/task:{index} is process {}", task.id()),
    );
    Ok(task)
}
