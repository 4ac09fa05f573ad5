//! Trains a network on handwritten digits with several processes.
//!
//! `cargo run --release --example train_on_cluster [WORKERS [PARAMETER_SERVERS]]`
//!
//! starts the other processes, copies of this one, on this machine. With parameter servers the workers
//! train each alone. On several machines, start a server for each task,
//!
//! `ferroflow server --cluster chief=HOST0:2222;worker=HOST1:2222,HOST2:2222 --job-name worker --task-index 0`
//!
//! and this program, on HOST0, with the same cluster:
//!
//! `train_on_cluster --cluster chief=HOST0:2222;worker=HOST1:2222,HOST2:2222`

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_remote::{MasterOptions, Server, ServerDef, ServerOptions};
use ferroflow_runtime::{DType, SessionOptions};
use ferroflow_train::{Activation, FitOptions, Network, Optimizer, ProgressLine, Tasks, Trainer};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::process::{Child, Command};

#[path = "data/digits.rs"]
mod digits;

/// Pixels of an image.
const PIXELS: usize = 64;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| {
        let number = text.parse::<usize>();
        number.map_err(|_| invalid_argument!("'{text}' is not a number of tasks"))
    };
    match args[..] {
        ["--task", cluster, job, index] => {
            server(cluster, job, number(index)? as u32)?.run(std::future::pending());
            Ok(())
        }
        ["--cluster", cluster] => train(cluster),
        [] => on_this_machine(2, 0),
        [workers] => on_this_machine(number(workers)?, 0),
        [workers, servers] => on_this_machine(number(workers)?, number(servers)?),
        _ => Err(invalid_argument!(
            "usage: train_on_cluster [WORKERS [PARAMETER_SERVERS]] or train_on_cluster --cluster CLUSTER"
        )),
    }
}

/// Processes that are ended when this one is done with them.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Trains with tasks at free ports of this machine.
fn on_this_machine(workers: usize, servers: usize) -> Result<()> {
    let failed = |e: std::io::Error| internal!("a task cannot be started: {e}");
    let mut listeners = Vec::new();
    let mut cluster = Vec::new();
    for (job, n) in [("chief", 1), ("worker", workers), ("ps", servers)] {
        let mut addresses = Vec::new();
        for _ in 0..n {
            let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            addresses.push(address.to_string());
            listeners.push(listener);
        }
        if n > 0 {
            cluster.push(format!("{job}={}", addresses.join(",")));
        }
    }
    let cluster = cluster.join(";");
    drop(listeners);
    let program = std::env::current_exe().map_err(failed)?;
    let mut processes = Processes(Vec::new());
    for (job, n) in [("worker", workers), ("ps", servers)] {
        for index in 0..n {
            let mut task = Command::new(&program);
            task.args(["--task", &cluster, job, &index.to_string()]);
            processes.0.push(task.spawn().map_err(failed)?);
        }
    }
    train(&cluster)
}

/// Returns the server of a task, which listens at its address.
fn server(cluster: &str, job: &str, index: u32) -> Result<Server> {
    let def = ServerDef::from_flags(cluster, job, index)?;
    let address = def.address()?.to_string();
    let found = address.to_socket_addrs().ok().and_then(|mut a| a.next());
    let address: SocketAddr =
        found.ok_or_else(|| invalid_argument!("'{address}' is not an address"))?;
    Server::bind(ServerOptions {
        address,
        monitor: None,
        tls: None,
        max_message: usize::MAX,
        master: MasterOptions {
            server: def,
            ..Default::default()
        },
    })
}

/// Trains as the chief of a cluster.
fn train(cluster: &str) -> Result<()> {
    let chief = server(cluster, "chief", 0)?;
    let size = |job| {
        let tasks = (0..).take_while(|i| ServerDef::from_flags(cluster, job, *i).is_ok());
        tasks.count()
    };
    let (workers, servers) = (size("worker"), size("ps"));
    let mut tasks = Tasks::of_job("worker", workers);
    if servers > 0 {
        tasks = tasks.with_parameters("ps", servers).asynchronous();
    }
    println!("waiting for {workers} workers and {servers} parameter servers");
    let master = chief.master();
    std::thread::spawn(|| chief.run(std::future::pending()));
    let options = master.session_options(&Default::default())?;
    let accuracy = fit(&tasks, options)?;
    println!(
        "{:.1} % of held-out digits read correctly",
        100.0 * accuracy
    );
    Ok(())
}

/// Trains a network with these tasks; returns its accuracy on held-out digits.
fn fit(tasks: &Tasks, options: SessionOptions) -> Result<f32> {
    let mut net = Network::new(3);
    let images = net.input("images", DType::Float, &[None, Some(PIXELS)])?;
    let labels = net.input("labels", DType::Int64, &[None])?;
    let hidden = net.dense("hidden", images, 128, Some(Activation::Relu))?;
    let logits = net.dense("logits", hidden, 10, None)?;
    let accuracy = net.accuracy(logits, labels)?;
    net.metric("accuracy", accuracy)?;
    let loss = net.softmax_cross_entropy(logits, labels)?;
    net.minimize_over(loss, &Optimizer::adam(2e-3), tasks)?;
    let mut trainer = Trainer::new(net, options)?;
    let (data, held_out) = digits::read(&[PIXELS])?;
    let options = FitOptions {
        epochs: 20,
        batch: 16,
        validation: Some(held_out.clone()),
        ..Default::default()
    };
    trainer.fit(&data, &options, &mut [&mut ProgressLine::default()])?;
    Ok(trainer.evaluate(&held_out, 360)?[0].1)
}
