//! A cluster of servers in this process.

use ferroflow_remote::{Master, MasterOptions, Server, ServerDef, ServerOptions};
use ferroflow_runtime::SessionOptions;
use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

/// A chief, whose sessions are those of `master`, and other tasks.
pub struct Cluster {
    pub master: Arc<Master>,
    text: String,
    tasks: Vec<Task>,
}

/// A task and the server that it has, unless that was stopped.
struct Task {
    job: &'static str,
    index: u32,
    address: SocketAddr,
    server: Option<(Arc<Stop>, JoinHandle<()>)>,
}

/// Whether a server is to stop, and what tells it.
#[derive(Default)]
struct Stop(Mutex<(bool, Option<Waker>)>);

impl Stop {
    async fn stopped(self: Arc<Stop>) {
        let poll = poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            state.1 = Some(context.waker().clone());
            match state.0 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        poll.await;
    }

    fn stop(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        state.1.take().into_iter().for_each(Waker::wake);
    }
}

impl Task {
    /// Starts the server, which lasts as long as the process unless it is stopped.
    fn start(&mut self, cluster: &str) -> Arc<Master> {
        let server = Server::bind(ServerOptions {
            address: self.address,
            monitor: None,
            tls: None,
            max_message: usize::MAX,
            master: MasterOptions {
                server: ServerDef::from_flags(cluster, self.job, self.index).unwrap(),
                threads: 2,
                ..Default::default()
            },
        });
        let server = server.unwrap();
        let master = server.master();
        let stop = Arc::<Stop>::default();
        let stopped = stop.clone().stopped();
        let run = move || server.run(stopped);
        self.server = Some((stop, std::thread::spawn(run)));
        master
    }
}

impl Cluster {
    /// Starts a chief, `n` workers and `servers` parameter servers.
    pub fn new(n: usize, servers: usize) -> Cluster {
        let jobs = [("chief", 1), ("worker", n), ("ps", servers)];
        let (mut tasks, mut listeners, mut text) = (Vec::new(), Vec::new(), String::new());
        for (job, n) in jobs {
            for index in 0..n as u32 {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                text += &match index {
                    0 => format!(";{job}={address}"),
                    _ => format!(",{address}"),
                };
                listeners.push(listener);
                tasks.push(Task {
                    job,
                    index,
                    address,
                    server: None,
                });
            }
        }
        drop(listeners);
        let masters = tasks.iter_mut().map(|task| task.start(&text));
        let masters: Vec<_> = masters.collect();
        Cluster {
            master: masters[0].clone(),
            text,
            tasks,
        }
    }

    /// The options of a session of the chief.
    pub fn options(&self) -> SessionOptions {
        self.master.session_options(&Default::default()).unwrap()
    }

    fn task(&mut self, job: &str, index: u32) -> &mut Task {
        let mut tasks = self.tasks.iter_mut();
        tasks.find(|t| t.job == job && t.index == index).unwrap()
    }

    /// Stops a task.
    pub fn stop(&mut self, job: &str, index: u32) {
        let (stop, thread) = self.task(job, index).server.take().unwrap();
        stop.stop();
        thread.join().unwrap();
    }

    /// Starts a task that was stopped.
    pub fn restart(&mut self, job: &str, index: u32) {
        let text = self.text.clone();
        self.task(job, index).start(&text);
    }
}

/// Starts a cluster that lasts as long as the process; returns the options of a session of the chief.
pub fn start(n: usize, servers: usize) -> SessionOptions {
    Cluster::new(n, servers).options()
}
