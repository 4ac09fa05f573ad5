//! Collectives by MPI: processes that `mpirun` starts train as one does.

#[path = "../examples/mpi_training.rs"]
#[allow(dead_code, reason = "its main function is for mpirun")]
mod example;

use std::net::TcpListener;
use std::process::Command;

/// A port with `n` free ones from it on.
fn free_ports(n: u16) -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let others = (1..n).map(|i| TcpListener::bind(("127.0.0.1", port.checked_add(i)?)).ok());
        if others.collect::<Option<Vec<_>>>().is_some() {
            return port;
        }
    }
}

/// The losses that `n` processes print, and how many buffers the first one has sent by MPI.
fn losses(n: u16) -> (Vec<f32>, usize) {
    let port = free_ports(n).to_string();
    let run = Command::new("mpirun")
        .args(["--oversubscribe", "-n", &n.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["processes_train_as_one_does", "--exact", "--nocapture"])
        .env("FERROFLOW_TEST_PORT", port)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output();
    let run = run.expect("mpirun is installed");
    let text = String::from_utf8_lossy(&run.stdout).to_string();
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{text}\n{errors}");
    let after = |label: &'static str| {
        text.lines()
            .filter_map(move |l| Some(l.rsplit_once(label)?.1))
    };
    let losses = after("loss ").map(|loss| loss.parse().unwrap());
    let sent = after("by MPI: ").map(|n| n.parse::<usize>().unwrap());
    (losses.collect(), sent.sum())
}

#[test]
fn processes_train_as_one_does() {
    if let Ok(port) = std::env::var("FERROFLOW_TEST_PORT") {
        // One of the processes.
        let losses = example::train(port.parse().unwrap()).unwrap();
        assert!(losses.last() < losses.first(), "{losses:?}");
        return;
    }
    let (one, sent) = losses(1);
    assert_eq!((one.len(), sent), (20, 0), "{one:?}");
    for n in [2, 4] {
        let (several, sent) = losses(n);
        // In a ring, a step sends a part of each of its two tensors in every pass, but the loss has only one part.
        assert!(sent >= 2 * one.len(), "{sent}");
        assert_eq!(several.len(), one.len(), "{several:?}");
        for (a, b) in one.iter().zip(&several) {
            assert!(
                (a - b).abs() <= 1e-5 * a.abs().max(1.0),
                "{one:?} {several:?}"
            );
        }
    }
}
