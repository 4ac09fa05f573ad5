//! `ferroflow cluster up`, and servers whose task is in the environment.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(args: &[&str], variables: &[(&str, &str)]) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_ferroflow"))
            .args(args)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Process(child.expect("starts"))
    }

    /// Its lines up to the first that begins with `last`.
    fn lines_until(&mut self, last: &str) -> Vec<String> {
        let out = self.0.stdout.as_mut().expect("a pipe");
        let mut lines = Vec::new();
        for line in BufReader::new(out).lines() {
            lines.push(line.expect("text"));
            if lines[lines.len() - 1].starts_with(last) {
                return lines;
            }
        }
        panic!("no line {last}: {lines:?}");
    }
}

fn terminate(process: &mut Process) -> Option<i32> {
    let id = process.0.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status();
    assert!(sent.expect("kill runs").success());
    process.0.wait().expect("ends").code()
}

#[test]
fn up_starts_and_stops_all_tasks() {
    let mut up = Process::start(&["cluster", "up", "2", "--ps", "1"], &[]);
    let lines = up.lines_until("CLUSTER");
    let tasks: Vec<&String> = lines.iter().filter(|l| l.contains("grpc://")).collect();
    let names: Vec<&str> = tasks.iter().filter_map(|l| l.split(' ').next()).collect();
    assert_eq!(
        names,
        ["/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"]
    );
    let address = |line: &&String| line.split("grpc://").nth(1).map(str::to_string);
    let addresses: Vec<String> = tasks.iter().filter_map(address).collect();
    for address in &addresses {
        TcpStream::connect(address).expect("the task listens");
    }
    assert_eq!(terminate(&mut up), Some(0));
    for address in &addresses {
        assert!(TcpStream::connect(address).is_err(), "{address} is open");
    }
}

#[test]
fn launchers_say_which_task_it_is() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("bound").port().to_string();
    drop(free);
    let args = ["server", "--first-port", &port];
    let mpi = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let mut server = Process::start(&args, &mpi);
    let lines = server.lines_until("TARGET");
    assert_eq!(lines, [format!("TARGET grpc://127.0.0.1:{port}")]);
}
