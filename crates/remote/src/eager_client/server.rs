//! [`OwnServer`]: the server by which the other tasks reach a context's own task.

use crate::device::ServerDef;
use crate::master::MasterOptions;
use crate::server::{Server, ServerOptions};
use crate::task::Task;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto;
use prost::Message;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A server on a thread of its own, until dropped.
pub(super) struct OwnServer {
    pub(super) task: Arc<Task>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OwnServer {
    /// Serves as the task that `def` names, at its port.
    ///
    /// # Errors
    /// NOT_FOUND if the cluster does not have the task; INVALID_ARGUMENT if its address has no port;
    /// UNAVAILABLE if the port is in use.
    pub(super) fn start(def: &proto::ServerDef, cpus: usize) -> Result<OwnServer> {
        let server = ServerDef::from_bytes(&def.encode_to_vec())?;
        let address = server.address()?;
        let port = port_of(address).ok_or_else(|| {
            invalid_argument!("Could not parse port for local server from \"{address}\"")
        })?;
        let server = Server::bind(ServerOptions {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
            monitor: None,
            tls: None,
            max_message: usize::MAX,
            master: MasterOptions {
                server,
                cpus,
                ..Default::default()
            },
        })?;
        let task = server.task().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            // Dropping the sender stops the server, too.
            let _ = stopped.await;
        };
        let thread = std::thread::spawn(move || server.run(stopped));
        Ok(OwnServer {
            task,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// The port of an address `host:port`.
pub(super) fn port_of(address: &str) -> Option<u16> {
    let (_, port) = address.rsplit_once(':')?;
    port.parse().ok()
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
