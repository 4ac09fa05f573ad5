//! A cluster of servers in this process.

use ferroflow_remote::{MasterOptions, Server, ServerDef, ServerOptions};
use ferroflow_runtime::SessionOptions;
use std::net::TcpListener;

/// Starts a chief, `n` workers and `servers` parameter servers; returns the options of a session of the
/// chief.
pub fn start(n: usize, servers: usize) -> SessionOptions {
    let jobs = [("chief", 1), ("worker", n), ("ps", servers)];
    let jobs = jobs.into_iter().filter(|(_, n)| *n > 0);
    let tasks: Vec<(&str, u32)> = jobs
        .flat_map(|(job, n)| (0..n as u32).map(move |i| (job, i)))
        .collect();
    let listeners: Vec<TcpListener> = tasks
        .iter()
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses = listeners.iter().map(|l| l.local_addr().unwrap());
    let addresses: Vec<_> = addresses.collect();
    let mut cluster = String::new();
    for ((job, index), address) in tasks.iter().zip(&addresses) {
        let before = match index {
            0 => format!(";{job}="),
            _ => ",".to_string(),
        };
        cluster += &format!("{before}{address}");
    }
    drop(listeners);
    let mut chief = None;
    for ((job, index), address) in tasks.iter().zip(addresses) {
        let server = Server::bind(ServerOptions {
            address,
            monitor: None,
            tls: None,
            max_message: usize::MAX,
            master: MasterOptions {
                server: ServerDef::from_flags(&cluster, job, *index).unwrap(),
                threads: 2,
                ..Default::default()
            },
        });
        let server = server.unwrap();
        match chief {
            None => chief = Some(server),
            // Ends with the process.
            Some(_) => drop(std::thread::spawn(|| server.run(std::future::pending()))),
        }
    }
    let chief = chief.unwrap();
    let options = chief.session_options(&Default::default()).unwrap();
    std::thread::spawn(|| chief.run(std::future::pending()));
    options
}
